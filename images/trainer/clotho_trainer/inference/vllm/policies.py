"""How a version of the policy gets into vLLM: as one more adapter, or in the place of all its weights."""

import asyncio
import logging
import shutil
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import EngineBusyError
from clotho_trainer.inference.vllm.client import VllmClient
from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - files lie in a folder of their own


class Policies(Protocol):
    async def publish(self) -> None:
        """The newest version serves from now on."""

    def served(self) -> AbstractAsyncContextManager[tuple[int, str]]:
        """For as long as an answer takes: the version, and the model to ask vLLM for."""

    def problem(self) -> str | None: ...

    async def withdraw(self) -> None:
        """From a server that others use, too."""


class Adapters:
    """Each version has a name of its own: vLLM keys its prefix cache on it. Answers in flight keep their version."""

    def __init__(self, live: LiveWeights, client: VllmClient, folder: Path, prefix: str, most: int) -> None:
        self._live, self._client, self._folder, self._prefix, self._most = live, client, folder, prefix, most
        self._loaded: deque[tuple[int, str]] = deque()

    async def publish(self) -> None:
        lineage, version = self._live.stamp
        name = f"{self._prefix}-{f'{lineage}-' if lineage else ''}v{version}"
        if self._loaded and self._loaded[-1][1] == name:
            return
        began = time.monotonic()
        folder = await asyncio.to_thread(self._write, name)
        written = time.monotonic()
        await self._client.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        self._loaded.append((version, name))
        seconds = {"seconds_writing": written - began, "seconds_reloading": time.monotonic() - written}
        log.info("vLLM has the adapter of step %d", version, extra=seconds)
        while len(self._loaded) >= self._most:
            _, old = self._loaded.popleft()
            await self._client.post("/v1/unload_lora_adapter", {"lora_name": old})
            shutil.rmtree(self._folder / old, ignore_errors=True)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[int, str]]:
        if not self._loaded:
            raise EngineBusyError("vLLM has no policy yet")
        yield self._loaded[-1]

    def problem(self) -> str | None:
        return None

    async def withdraw(self) -> None:
        with suppress(EngineBusyError):
            for _, name in self._loaded:
                await self._client.post("/v1/unload_lora_adapter", {"lora_name": name})
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str) -> Path:
        staging, final = self._folder / f".{name}", self._folder / name
        with self._live.training():
            self._live.save_pretrained(staging)
        staging.rename(final)
        return final


class Weights:
    """Each version takes the place of the one before, by vLLM's own reload, which shards it as vLLM's start does.

    No answer has tokens of two versions: those in flight are completed first, and new ones wait.
    """

    def __init__(self, live: LiveWeights, client: VllmClient, folder: Path, model: str) -> None:
        self._live, self._client, self._folder, self._model = live, client, folder, model
        self._stamp = (0, 0)  # of the base, which vLLM has loaded itself
        self._gate = _Gate()
        self._problem: str | None = None

    async def publish(self) -> None:
        if self._live.stamp == self._stamp:
            return
        began = time.monotonic()
        folder, stamp = await asyncio.to_thread(self._write)
        written = time.monotonic()
        try:
            async with self._gate.closed():
                drained = time.monotonic()
                await self._reload(folder, stamp[1])
                self._stamp = stamp
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        seconds = {
            "seconds_writing": written - began,
            "seconds_draining": drained - written,
            "seconds_reloading": time.monotonic() - drained,
        }
        log.info("vLLM has the weights of step %d", stamp[1], extra=seconds)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[int, str]]:
        async with self._gate.inside():
            yield self._stamp[1], self._model

    def problem(self) -> str | None:
        return self._problem

    async def withdraw(self) -> None:
        """There is no server to withdraw from: a server elsewhere serves adapters only."""

    async def _reload(self, folder: Path, version: int) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        try:
            # Aborts what clients have left behind, and forgets the prefixes that the old weights computed.
            await self._client.post("/pause?mode=abort&clear_cache=true")
            await self._client.post("/collective_rpc", reload)
            await self._client.post("/resume")
        except EngineBusyError as error:
            self._problem = f"vLLM could not load the weights of step {version}: {error}"  # it may have a part of them
            raise TrainerError("DependencyUnavailable", self._problem) from error

    def _write(self) -> tuple[Path, tuple[int, int]]:
        with self._live.training():
            folder = Path(tempfile.mkdtemp(prefix="clotho-weights-", dir=self._place(self._live.bytes_to_hand_over)))
            try:
                self._live.hand_over(folder)
            except OSError as error:
                shutil.rmtree(folder, ignore_errors=True)
                problem = f"the weights could not be written for vLLM to {folder}: {error}"
                raise TrainerError("InternalError", problem) from error
            return folder, self._live.stamp

    def _place(self, size: int) -> Path:
        """Memory where there is room for it, or else the pod's disk."""
        if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > size * 1.01:
            return SHARED_MEMORY
        log.info("%s has no room for %.1f GiB of weights; %s is slower", SHARED_MEMORY, size / 2**30, self._folder)
        return self._folder


class _Gate:
    """Any number of answers at once, or one change of the weights, which waits for those and goes before new ones."""

    def __init__(self) -> None:
        self._answers = 0
        self._opened, self._empty = asyncio.Event(), asyncio.Event()
        self._opened.set()
        self._empty.set()

    @asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        while not self._opened.is_set():  # it may have closed again before this one was resumed
            await self._opened.wait()
        self._answers += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._answers -= 1
            if not self._answers:
                self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        self._opened.clear()
        try:
            await self._empty.wait()
            yield
        finally:
            self._opened.set()
