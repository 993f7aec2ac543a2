"""The faults: what happens, at which write, at which moment. Each has a name that finds it again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from faults.calls import Call, Write
from faults.proxy import ConnectionLost, FaultProxy, Moment, refusal


class Reach(Protocol):
    """What an effect can act on."""

    proxy: FaultProxy

    async def kill(self) -> None: ...
    async def freeze(self, seconds: float) -> None: ...
    async def delete_run(self) -> None: ...
    async def delete_namespace(self) -> None: ...
    def later(self, seconds: float, what: str) -> None: ...


class Effect(Protocol):
    async def happen(self, reach: Reach) -> web.StreamResponse | None: ...


@dataclass(frozen=True)
class Kill:
    """SIGKILL; the process is started again, as a kubelet would."""

    async def happen(self, reach: Reach) -> None:
        await reach.kill()
        raise ConnectionLost

    def __str__(self) -> str:
        return "kill"


@dataclass(frozen=True)
class Refuse:
    code: int
    reason: str
    retry_after: int = 0

    async def happen(self, reach: Reach) -> web.StreamResponse:
        return refusal(self.code, self.reason, self.retry_after)

    def __str__(self) -> str:
        return f"refuse-{self.code}"


@dataclass(frozen=True)
class Reset:
    async def happen(self, reach: Reach) -> None:
        raise ConnectionLost

    def __str__(self) -> str:
        return "reset"


@dataclass(frozen=True)
class HoldWatch:
    """The view becomes stale: events arrive late."""

    plural: str
    seconds: float = 1.5

    async def happen(self, reach: Reach) -> None:
        reach.proxy.hold(self.plural)
        reach.later(self.seconds, "release")

    def __str__(self) -> str:
        return f"hold-{self.plural}"


@dataclass(frozen=True)
class ExpireWatch:
    """410 in the open watch; with `replays_list`, the list that follows is the oldest that was ever answered."""

    plural: str
    replays_list: bool = False

    async def happen(self, reach: Reach) -> None:
        if self.replays_list:
            reach.proxy.replayed.add(self.plural)
        for watch in reach.proxy.open_watches(self.plural):
            await watch.expire()

    def __str__(self) -> str:
        return f"{'old-list' if self.replays_list else 'expire'}-{self.plural}"


@dataclass(frozen=True)
class HangWatch:
    """The connection stays open, and nothing arrives on it any more."""

    plural: str

    async def happen(self, reach: Reach) -> None:
        for watch in reach.proxy.open_watches(self.plural):
            watch.flows.clear()

    def __str__(self) -> str:
        return f"hang-{self.plural}"


@dataclass(frozen=True)
class ResetWatches:
    async def happen(self, reach: Reach) -> None:
        for watch in tuple(reach.proxy.watches):
            watch.upstream.close()

    def __str__(self) -> str:
        return "reset-watches"


@dataclass(frozen=True)
class Freeze:
    """SIGSTOP for a while: what happens meanwhile is not observed, only its result."""

    seconds: float = 1.0

    async def happen(self, reach: Reach) -> None:
        await reach.freeze(self.seconds)

    def __str__(self) -> str:
        return "freeze"


@dataclass(frozen=True)
class DeleteRun:
    async def happen(self, reach: Reach) -> None:
        await reach.delete_run()

    def __str__(self) -> str:
        return "delete-run"


@dataclass(frozen=True)
class DeleteNamespace:
    async def happen(self, reach: Reach) -> None:
        await reach.delete_namespace()

    def __str__(self) -> str:
        return "delete-namespace"


@dataclass
class Fault:
    """One effect, once, at one moment of one write."""

    effect: Effect
    at: Write
    moment: Moment = Moment.BEFORE
    has_happened: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.effect} {self.moment} {self.at}"

    def arm(self, reach: Reach) -> None:
        async def on_write(write: Write, moment: Moment) -> web.StreamResponse | None:
            if self.has_happened or (write, moment) != (self.at, self.moment):
                return None
            self.has_happened = True
            return await self.effect.happen(reach)

        reach.proxy.on_write = on_write


@dataclass
class Slow:
    """Every answer comes late."""

    seconds: float = 0.15
    has_happened: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        return "slow-server"

    def arm(self, reach: Reach) -> None:
        async def on_call(_: Call) -> None:
            await asyncio.sleep(self.seconds)

        reach.proxy.on_call = on_call


@dataclass
class Unauthorized:
    """Each kind of request is refused once with 401, as with a token that has just expired."""

    has_happened: bool = field(default=False, compare=False)
    _refused: set[tuple[str, str]] = field(default_factory=set, compare=False)

    def __str__(self) -> str:
        return "expired-credentials"

    def arm(self, reach: Reach) -> None:
        async def on_call(call: Call) -> web.StreamResponse | None:
            kind = (call.method, call.plural)
            if kind in self._refused:
                return None
            self._refused.add(kind)
            self.has_happened = True
            return refusal(401, "Unauthorized")

        reach.proxy.on_call = on_call


@dataclass
class NoFault:
    has_happened: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        return "no-fault"

    def arm(self, reach: Reach) -> None:
        return None


AnyFault = Fault | Slow | Unauthorized | NoFault
