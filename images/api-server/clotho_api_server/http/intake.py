"""POST /scored_data and /scored_data_list: check, write to disk, only then say `received`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from aiohttp import web

from clotho_api_server.http import bodies
from clotho_api_server.http.answers import answer
from clotho_api_server.parsing.groups import AT_A_GLANCE, Group, Parser, parse_group, parse_groups
from clotho_api_server.refusals import FullError, RefusalError
from clotho_api_server.state.ledger import queue_is_full
from clotho_api_server.state.outcomes import Enqueued, Receipt
from clotho_api_server.state.service import Service
from clotho_api_server.state.shares import Snapshot, needs_no_group
from clotho_contract.api_protocol import IDEMPOTENCY_HEADER, LONGEST_IDEMPOTENCY_KEY, PROTOCOL_HEADER
from clotho_contract.memory_budget import Budget

BODIES_IN_MEMORY: Final = 256 * 1024**2
ON_THE_LOOP: Final = 4 * 1024**2  # bytes; a glance at them costs less than sharing the interpreter with a thread


class Intake:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._budget = Budget(BODIES_IN_MEMORY)
        self._glancing = asyncio.Lock()

    async def scored_data(self, request: web.Request) -> web.Response:
        receipt = await self._take(request, parse_group)
        if receipt.buffered:
            return answer({"status": "buffered", "buffer_size": receipt.buffer_size})
        return answer({"status": "dropped" if receipt.stale else "received"})

    async def scored_data_list(self, request: web.Request) -> web.Response:
        receipt = await self._take(request, parse_groups)
        content: dict[str, object] = {"status": "received", "groups_processed": receipt.groups}
        if receipt.buffered:
            content |= {"buffered": receipt.buffered, "last_buffer_size": receipt.buffer_size}
        if receipt.stale:
            content["dropped"] = receipt.stale
        return answer(content)

    async def _take(self, request: web.Request, parse: Parser[Group] | Parser[list[Group]]) -> Receipt:
        heeds_429 = PROTOCOL_HEADER in request.headers
        groups: Sequence[Group] = ()
        try:
            key = _key_of(request)
            await self._wait_for_room(heeds_429)
            async with self._body(request) as body:
                groups = await self._check(body, parse)
                for env_id in {group.env_id for group in groups} - {None}:
                    await self._service.record_heartbeat(env_id or 0)
                enqueued = await self._service.change(
                    lambda ledger: ledger.enqueue(groups, heeds_429=heeds_429, key=key), weight=len(body)
                )
        except RefusalError as refusal:
            reason = "full" if isinstance(refusal, FullError) else "invalid" if refusal.status == 422 else "other"
            self._count_rejected(groups, reason)
            raise
        self._count_accepted(groups, enqueued)
        return enqueued.receipt

    async def _wait_for_room(self, heeds_429: bool) -> None:
        """Before the body is read: the group waits in the client, not in our memory."""
        service, limits = self._service, self._service.settings.limits

        def has_room(state: Snapshot) -> bool:
            reached = limits.reached_by(state) if heeds_429 else limits.bytes_reached_by(state)
            return not (reached and needs_no_group(state))

        if not await service.until(has_room, 0 if heeds_429 else service.settings.hold_when_full):
            raise queue_is_full(service.state, limits, heeds_429=heeds_429)

    @asynccontextmanager
    async def _body(self, request: web.Request) -> AsyncIterator[bytes]:
        """The JSON, for as long as there is memory set aside for it."""
        limit = self._service.settings.max_body_bytes
        async with self._budget.reservation() as held:
            body = await bodies.read(request, limit, held)
            if bodies.is_gzip(request):
                await held.grow(bodies.expanded_length(body, limit))
                body = await self._service.check(partial(bodies.expand, body, limit))
            yield body

    async def _check(self, body: bytes, parse: Parser[Group] | Parser[list[Group]]) -> Sequence[Group]:
        registration = self._service.state.registration
        longest = registration.max_token_len if registration else 0
        if len(body) <= AT_A_GLANCE:
            return _listed(parse(body, longest))
        if len(body) <= ON_THE_LOOP:
            async with self._glancing:
                groups = parse.glance(body, longest)
                await asyncio.sleep(0)  # others are served between any two bodies
            if groups is not None:
                return _listed(groups)
        return _listed(await self._service.check(lambda: parse(body, longest)))

    def _count_rejected(self, groups: Sequence[Group], reason: str) -> None:
        for env_id in [group.env_id for group in groups] or [None]:
            self._service.metrics.rejected(env_id, reason)

    def _count_accepted(self, groups: Sequence[Group], enqueued: Enqueued) -> None:
        for group, one in zip(groups, enqueued.accepted, strict=False):
            if one.outcome == "stale":
                self._service.metrics.dropped({group.env_id: 1})
            else:
                self._service.metrics.received(group.env_id)
                self._service.latest = group.body


def _listed(groups: Group | list[Group]) -> list[Group]:
    return [groups] if isinstance(groups, Group) else groups


def _key_of(request: web.Request) -> str | None:
    """What the client calls these groups, so that it may send them again when it got no answer."""
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is not None and not (0 < len(key) <= LONGEST_IDEMPOTENCY_KEY and key.isascii() and key.isprintable()):
        raise RefusalError(f"{IDEMPOTENCY_HEADER} must be 1 to {LONGEST_IDEMPOTENCY_KEY} printable ASCII characters")
    return key
