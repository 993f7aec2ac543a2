"""Batches go out: plain GET /batch for old trainers, leases that are acknowledged for new ones."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

from clotho_api_server.http.answers import answer, asked
from clotho_api_server.refusals import RefusalError
from clotho_api_server.state.ledger import Ledger
from clotho_api_server.state.outcomes import Lease, Leased, Trained
from clotho_api_server.state.service import Service
from clotho_contract.api_protocol import AtStep, CurrentStep, LeaseRequest, Renewed

LIMIT_SECONDS: Final = 60.0  # for a client that does not take the next group
_END: Final = b"]}"


class Batches:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._asked_since: float | None = None

    async def plain(self, request: web.Request) -> web.StreamResponse:
        """Counts as trained just before the last bytes leave; a client that vanished by then gets it again."""
        if self._service.state.registration is None:
            message = "Trainer not registered. Call /register first."
            return answer({"status": "error", "message": message, "batch": []})
        leased = await self._next(plain=True)
        if leased is None:
            return answer({"batch": None})
        lease = leased.lease
        response = await self._send_or_release(request, lease, b'{"batch":[', b"", held_back=len(_END))
        delivering = asyncio.create_task(self._service.change(lambda ledger: ledger.deliver(lease.id)))
        try:
            trained = await asyncio.shield(delivering)
            await _write(response, _END)
        except BaseException:
            await delivering
            await self._service.change(lambda ledger: ledger.take_back(lease.batch))
            raise
        await self._change_after_the_answer(lambda ledger: ledger.forget_delivered())
        self._count(trained)
        return response

    async def lease(self, request: web.Request) -> web.StreamResponse:
        wanted = await asked(request, LeaseRequest)
        deadline = time.monotonic() + wanted.wait_seconds
        while (leased := await self._next()) is None:
            left = deadline - time.monotonic()
            if not await self._service.until(lambda state: state.has_batch, left):
                return web.Response(status=204)
        head = {
            "lease_id": leased.lease.id,
            "expires_in": self._service.settings.limits.lease_seconds,
            "step": leased.step,
        }
        opening = msgspec.json.encode(head)[:-1] + b',"batch":['
        lease = leased.lease
        response = await self._send_or_release(request, lease, opening, _END)
        await self._change_after_the_answer(lambda ledger: ledger.mark_sent(lease.id))
        return response

    async def renew(self, request: web.Request) -> web.Response:
        lease_id = request.match_info["id"]
        seconds = await self._service.change(lambda ledger: ledger.renew(lease_id, time.monotonic()))
        return answer(Renewed(seconds))

    async def acknowledge(self, request: web.Request) -> web.Response:
        lease_id, done = request.match_info["id"], await asked(request, AtStep)
        trained = await self._service.change(lambda ledger: ledger.acknowledge(lease_id, done.step))
        self._count(trained)
        return answer(CurrentStep(trained.step))

    async def release(self, request: web.Request) -> web.Response:
        lease_id = request.match_info["id"]
        await self._service.change(lambda ledger: ledger.release(lease_id))
        return answer({"status": "released"})

    async def checkpointed(self, request: web.Request) -> web.Response:
        done = await asked(request, AtStep)
        await self._service.change(lambda ledger: ledger.checkpointed(done.step))
        return answer({"status": "success"})

    async def _next(self, *, plain: bool = False) -> Leased | None:
        now = time.monotonic()
        asking = asyncio.create_task(self._service.change(lambda ledger: ledger.lease(now, plain=plain)))
        try:
            leased = await asyncio.shield(asking)
        except asyncio.CancelledError:
            if (cancelled := await asking) is not None:
                await self._give_back(cancelled.lease)
            raise
        self._asked_since = self._asked_since or now
        if leased is not None:
            self._service.metrics.batch_wait.observe(time.monotonic() - self._asked_since)
            self._asked_since = None
            self._service.note_lease()
            for steps in leased.staleness:
                self._service.metrics.staleness.observe(steps)
        return leased

    def _count(self, trained: Trained) -> None:
        self._service.metrics.trained(trained.groups)
        self._service.metrics.dropped(trained.dropped)

    async def _change_after_the_answer(self, change: Callable[[Ledger], None]) -> None:
        """No client waits for it any more; if the disk refuses, the next start does the same."""
        with suppress(RefusalError):
            await asyncio.shield(self._service.change(change))

    async def _send_or_release(
        self, request: web.Request, lease: Lease, opening: bytes, ending: bytes, held_back: int = 0
    ) -> web.StreamResponse:
        try:
            return await self._send(request, lease, opening, ending, held_back)
        except BaseException:
            await asyncio.shield(self._give_back(lease))
            raise

    async def _send(
        self, request: web.Request, lease: Lease, opening: bytes, ending: bytes, held_back: int
    ) -> web.StreamResponse:
        """One group at a time, so that memory does not grow with the batch; the caller writes what is held back."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(opening) + lease.bytes + lease.groups - 1 + len(ending) + held_back
        await response.prepare(request)
        if request.transport is not None:
            request.transport.set_write_buffer_limits(0)  # written means handed to the kernel
        await _write(response, opening)
        separator = b""
        async for body in self._bodies(lease):
            await _write(response, separator + body)
            separator = b","
        await _write(response, ending)
        return response

    async def _bodies(self, lease: Lease) -> AsyncIterator[bytes]:
        for place in await self._service.members(lease.batch):
            body = await self._service.read(place)
            if body is None:
                raise ConnectionResetError("the batch was taken away while it was being sent")
            yield body

    async def _give_back(self, lease: Lease) -> None:
        with suppress(RefusalError):  # it may have expired or been acknowledged already
            await self._service.change(lambda ledger: ledger.release(lease.id))


async def _write(response: web.StreamResponse, data: bytes) -> None:
    await asyncio.wait_for(response.write(data), LIMIT_SECONDS)
