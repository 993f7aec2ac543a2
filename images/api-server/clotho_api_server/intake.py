"""POST /scored_data and /scored_data_list: check, write to disk, only then say `received`."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from clotho_api_server import bodies
from clotho_api_server.answers import answer
from clotho_api_server.groups import Group, parse_group, parse_groups
from clotho_api_server.ledger import Accepted, queue_is_full
from clotho_api_server.refusals import FullError, RefusalError
from clotho_api_server.service import Service
from clotho_api_server.shares import Snapshot, nobody_is_welcome
from clotho_contract.names import PROTOCOL_HEADER

ON_THE_LOOP: Final = 32 * 1024  # smaller bodies are checked faster than a thread is woken
Parse = Callable[[bytes, int], Sequence[Group]]


class Intake:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def scored_data(self, request: web.Request) -> web.Response:
        [result] = await self._take(request, lambda body, longest: [parse_group(body, longest)])
        if result.outcome == "buffered":
            return answer({"status": "buffered", "buffer_size": result.buffer_size})
        return answer({"status": "received" if result.outcome == "received" else "dropped"})

    async def scored_data_list(self, request: web.Request) -> web.Response:
        results = await self._take(request, parse_groups)
        content: dict[str, object] = {"status": "received", "groups_processed": len(results)}
        counts = Counter(result.outcome for result in results)
        if counts["buffered"]:
            content["buffered"] = counts["buffered"]
            content["last_buffer_size"] = [r.buffer_size for r in results if r.outcome == "buffered"][-1]
        if counts["stale"]:
            content["dropped"] = counts["stale"]
        return answer(content)

    async def _take(self, request: web.Request, parse: Parse) -> Sequence[Accepted]:
        heeds_429 = PROTOCOL_HEADER in request.headers
        groups: Sequence[Group] = ()
        try:
            await self._wait_for_room(heeds_429)
            async with self._body(request) as body:
                groups = await self._check(body, parse)
                for env_id in {group.env_id for group in groups} - {None}:
                    await self._service.hear(env_id or 0)
                results = await self._service.change(
                    lambda ledger: ledger.enqueue(groups, heeds_429=heeds_429), weight=len(body)
                )
        except RefusalError as refusal:
            reason = "full" if isinstance(refusal, FullError) else "invalid" if refusal.status == 422 else "other"
            self._count_rejected(groups, reason)
            raise
        self._count_accepted(groups, results)
        return results

    async def _wait_for_room(self, heeds_429: bool) -> None:
        """Before the body is read: the group waits in the client, not in our memory."""
        service, limits = self._service, self._service.settings.limits

        def has_room(state: Snapshot) -> bool:
            reached = limits.reached_by(state) if heeds_429 else limits.bytes_reached_by(state)
            return not (reached and nobody_is_welcome(state))

        if not await service.until(has_room, 0 if heeds_429 else service.settings.patience_when_full):
            raise queue_is_full(service.state, limits, heeds_429=heeds_429)

    @asynccontextmanager
    async def _body(self, request: web.Request) -> AsyncIterator[bytes]:
        """The JSON, for as long as there is memory set aside for it."""
        limit = self._service.settings.max_body_bytes
        budget = self._service.budget
        declared = request.content_length if request.content_length is not None else limit
        if declared > limit:
            raise bodies.too_large(declared, limit)
        if not bodies.is_gzip(request):
            async with budget.reserve(declared):
                yield await bodies.read(request, limit)
            return
        async with budget.reserve(declared):
            compressed = await bodies.read(request, limit)
        async with budget.reserve(len(compressed) + bodies.expanded_length(compressed)):
            yield await self._service.check(lambda: bodies.expand(compressed, limit))

    async def _check(self, body: bytes, parse: Parse) -> Sequence[Group]:
        registration = self._service.state.registration
        longest = registration.max_token_len if registration else 0
        if len(body) <= ON_THE_LOOP:
            return parse(body, longest)
        return await self._service.check(lambda: parse(body, longest))

    def _count_rejected(self, groups: Sequence[Group], reason: str) -> None:
        for env_id in [group.env_id for group in groups] or [None]:
            self._service.metrics.rejected(env_id, reason)

    def _count_accepted(self, groups: Sequence[Group], results: Sequence[Accepted]) -> None:
        for group, result in zip(groups, results, strict=True):
            if result.outcome == "stale":
                self._service.metrics.dropped({group.env_id: 1})
            else:
                self._service.metrics.received(group.env_id)
                self._service.latest = group.body
