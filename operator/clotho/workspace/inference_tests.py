"""Creates InferenceTests and waits for them, for the command line and for agents."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from clotho.api.inference_tests import DEFAULT_MODELS, OPENROUTER
from clotho.api.phases import FINISHED_TEST_PHASES
from clotho.cluster.client import Object
from clotho.plan.references import WAITING_FOR_REFERENCES
from clotho.plan.wording import uncapitalised
from clotho.workspace.objects import Workspace

POLL_SECONDS: Final = 2.0
SLACK_SECONDS: Final = 600.0  # for images to be pulled and pods to be scheduled
_SIZES: Final = {model.name: model.size for model in DEFAULT_MODELS}


class TestOrder(Struct, frozen=True, kw_only=True):
    """A key is named by its Secret, and never read here."""

    environment: str
    config: dict[str, Any]
    models: Sequence[str] = ()
    base_url: str = ""
    secret_name: str = ""
    steps: int = 3
    group_size: int = 16
    timeout_seconds: int = 600
    ttl_seconds: int | None = None

    def spec(self) -> Object:
        names = list(self.models) or ([*_SIZES] if self.base_url else [])
        spec: Object = {
            "environmentName": self.environment,
            "config": self.config,
            "steps": self.steps,
            "groupSize": self.group_size,
            "timeoutSeconds": self.timeout_seconds,
        }
        if names:
            address = self.base_url or OPENROUTER
            spec["models"] = [{"name": name, "size": _SIZES.get(name, "custom"), "baseUrl": address} for name in names]
        if self.secret_name:
            spec["secretName"] = self.secret_name
        if self.ttl_seconds is not None:
            spec["ttlSecondsAfterFinished"] = self.ttl_seconds
        return spec

    @property
    def limit_seconds(self) -> float:
        return self.timeout_seconds + SLACK_SECONDS


Listener = Callable[[Object], Awaitable[None]]


class CannotStart(Exception):  # noqa: N818 - an outcome
    """The test names objects that do not exist. It would wait for them, the person who started it need not."""


async def wait_for_test(workspace: Workspace, name: str, limit_seconds: float, listener: Listener) -> Object:
    """The finished test; the listener is called with each change. Raises TimeoutError and CannotStart."""
    known = ""
    async with asyncio.timeout(limit_seconds):
        while True:
            test = await workspace.get("InferenceTest", name)
            if missing := _missing_references(test):
                raise CannotStart(missing)
            if test["metadata"]["resourceVersion"] != known:
                known = test["metadata"]["resourceVersion"]
                await listener(test)
            if test.get("status", {}).get("phase") in FINISHED_TEST_PHASES:
                return test
            await asyncio.sleep(POLL_SECONDS)


def _missing_references(test: Object) -> str:
    for condition in test.get("status", {}).get("conditions", ()):
        if condition["reason"] == WAITING_FOR_REFERENCES:
            return uncapitalised(condition["message"])
    return ""
