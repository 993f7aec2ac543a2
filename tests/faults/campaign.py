"""Cases, side by side; each compared with the reference; a report that names the command which repeats a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from clotho.cluster.outcomes import ApiError
from faults import life, oracles
from faults.calls import Write
from faults.fault import AnyFault
from faults.lab import Bench, Lab
from faults.masking import State, differences, state_of
from faults.proxy import Recorded
from rig.cluster_access import component

SIDE_BY_SIDE = 6
STAGE_SECONDS = 120.0
QUIET_SECONDS = 1.5
POLL_SECONDS = 0.25


@dataclass
class Recording:
    """What happened in one life: the writes, the state at the end of each stage, the claim's ids."""

    writes: list[Recorded] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[Write]:
        return [each.write for each in self.writes]


@dataclass(frozen=True)
class Outcome:
    case: str
    complaints: tuple[str, ...]
    seconds: float
    was_reached: bool = True


@dataclass(frozen=True)
class Case:
    """`run` returns complaints, and whether its fault took place."""

    name: str
    run: Callable[[Lab], Awaitable[tuple[list[str], bool]]]


@dataclass(frozen=True)
class Report:
    campaign: str
    outcomes: tuple[Outcome, ...]

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.complaints]

    def __str__(self) -> str:
        missed = sum(not outcome.was_reached for outcome in self.outcomes)
        mean = sum(outcome.seconds for outcome in self.outcomes) / max(1, len(self.outcomes))
        lines = [
            f"{self.campaign}: {len(self.outcomes)} cases, {len(self.failed)} failed, "
            f"{missed} whose write did not occur, {mean:.1f} s each with {SIDE_BY_SIDE} side by side"
        ]
        for outcome in self.failed:
            lines.append(f"  FAILED {outcome.case}")
            lines += [f"    {complaint}" for complaint in outcome.complaints[:8]]
            lines.append(f"    again: make faults CAMPAIGN={self.campaign} CASE='{outcome.case}'")
        return "\n".join(lines)


async def run_all(campaign: str, cases: Iterable[Case], lab: Lab) -> Report:
    places = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(case: Case) -> Outcome:
        async with places:
            started = time.monotonic()
            try:
                complaints, was_reached = await case.run(lab)
            except (ApiError, AssertionError, OSError, TimeoutError) as error:
                complaints, was_reached = [f"{type(error).__name__}: {error}"], True
            return Outcome(case.name, tuple(complaints), time.monotonic() - started, was_reached)

    return Report(campaign, tuple(await asyncio.gather(*(one(case) for case in cases))))


async def record(lab: Lab) -> Recording:
    """The reference: a life without faults. Two of them, because what differs between them must be masked."""
    first, second = await asyncio.gather(_record(lab), _record(lab))
    for stage, state in first.states.items():
        different = differences(state, second.states[stage])
        assert not different, f"two undisturbed lives differ at {stage}, so nothing can be compared: {different}"
    return first


async def _record(lab: Lab) -> Recording:
    async with lab.bench() as bench:
        recording = Recording(writes=bench.proxy.recorded)

        async def reached(stage: str) -> None:
            recording.states[stage] = await settled(bench)
            recording.claims += await claims_of(bench)

        await life.play(bench.cluster, bench.kubelet, reached)
    return recording


async def settled(bench: Bench) -> State:
    """The state once nothing changes any more."""
    state, since = await state_of(bench.cluster), time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        await asyncio.sleep(0.1)
        if (now := await state_of(bench.cluster)) != state:
            state, since = now, time.monotonic()
    return state


async def claims_of(bench: Bench) -> list[str]:
    claims = await bench.cluster.all("persistentvolumeclaims")
    return [each["metadata"]["uid"] for each in claims if component(each) == "trainer"]


def life_with(fault: Callable[[], AnyFault], reference: Recording) -> Case:
    """The whole life with one fault: at the end of each stage the state is the reference's."""

    async def run(lab: Lab) -> tuple[list[str], bool]:
        armed = fault()
        claims: list[str] = []
        async with lab.bench() as bench:
            armed.arm(bench)

            async def reached(stage: str) -> None:
                await until_equal(bench, stage, reference.states[stage])
                claims.extend(await claims_of(bench))

            complaints: list[str] = []
            try:
                await life.play(bench.cluster, bench.kubelet, reached)
            except AssertionError as error:
                complaints.append(str(error))
            complaints += judge(reference, bench, claims)
        return complaints, armed.has_happened

    return Case(str(fault()), run)


def judge(reference: Recording, bench: Bench, claims: Sequence[str]) -> list[str]:
    recorded = bench.proxy.recorded
    return [
        *oracles.same_creates_and_deletes(reference.writes, recorded),
        *oracles.no_loop(reference.writes, recorded),
        *always(bench),
        *oracles.claim_kept(claims),
    ]


def always(bench: Bench) -> list[str]:
    """What holds whatever the run's life was."""
    return [
        *oracles.no_traceback(bench.log),
        *oracles.one_trainer(bench.kubelet.trainers_seen_together),
        *oracles.steps_monotone(bench.proxy.recorded),
        *([bench.problem] if bench.problem else []),
    ]


async def until_equal(
    bench: Bench,
    stage: str,
    expected: State,
    limit_seconds: float = STAGE_SECONDS,
    mask: Callable[[State], State] = lambda state: state,
) -> None:
    deadline = time.monotonic() + limit_seconds
    while (found := mask(await state_of(bench.cluster))) != expected:
        if time.monotonic() > deadline:
            raise AssertionError("\n    ".join(oracles.equal_states(stage, expected, found)[:8]))
        await asyncio.sleep(POLL_SECONDS)
