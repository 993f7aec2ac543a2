"""A browser that follows one run from before it exists until it is completed, beside the test."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from clotho_dev.cluster.kubectl import Kubectl
from e2e.product.runs import LIMIT_SECONDS
from rig.browser import open_browser
from rig.page_process import clotho_ui


class PageWatch:
    def __init__(self, kubectl: Kubectl, run: str, folder: Path) -> None:
        self._kubectl, self._run, self._folder = kubectl, run, folder
        self._is_open = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """The page is open once this returns."""
        self._thread.start()
        self._is_open.wait(LIMIT_SECONDS)

    def finish(self) -> None:
        """Once the run is completed: the page has shown its life and its curves, without a complaint of the browser."""
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "the page does not show the end of the run"
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._is_open.set()

    async def _watch(self) -> None:
        namespace = self._kubectl.namespace or "default"
        async with (
            clotho_ui(self._kubectl.kubeconfig, "--namespace", namespace) as address,
            open_browser(self._folder) as tab,
        ):
            await tab.open(address)
            self._is_open.set()
            row = f"document.querySelector('[data-run=\"{namespace}/{self._run}\"] .phase')?.innerText"
            await tab.until(f"['Running', 'Completed'].includes({row})", LIMIT_SECONDS)
            await tab.go(f"/runs/{namespace}/{self._run}")
            await tab.until("document.querySelectorAll('.chart .line').length > 3", LIMIT_SECONDS)
            await tab.until("document.querySelector('.run-top .phase')?.innerText === 'Completed'", LIMIT_SECONDS)
            await tab.go(f"/runs/{namespace}/{self._run}?tab=samples")
            await tab.until("document.querySelectorAll('.answer').length > 0", LIMIT_SECONDS)
            assert tab.problems == []
