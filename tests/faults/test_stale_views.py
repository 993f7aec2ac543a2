"""What the operator sees is old or interrupted: held, expired, replayed and hung watches; a frozen process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from faults import life
from faults.campaign import Case, Recording, always, life_with, until_equal
from faults.fault import Effect, ExpireWatch, Fault, Freeze, HangWatch, HoldWatch
from faults.lab import Lab
from faults.masking import PREDECESSORS, State
from faults.proxy import Moment

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(3600)]
WATCHED = (
    "trainingruns",
    "pods",
    "services",
    "persistentvolumeclaims",
    "networkpolicies",
    "poddisruptionbudgets",
)
BUSY = ("trainingruns", "pods")  # they change at most writes; of the others every fifth write is enough


def cases(reference: Recording) -> list[Case]:
    found = []
    for plural in WATCHED:
        effects: tuple[Effect, ...] = (HoldWatch(plural), ExpireWatch(plural), ExpireWatch(plural, replays_list=True))
        writes = reference.names if plural in BUSY else reference.names[::5]
        found += [partial(Fault, effect, write, Moment.ANSWERED) for effect in effects for write in writes]
    found += [partial(Fault, Freeze(), write, Moment.ANSWERED) for write in reference.names]
    return [
        *(life_with(fault, reference) for fault in found),
        *(same_name_again(plural, reference) for plural in (*WATCHED, "")),
    ]


def hung_watches(reference: Recording) -> list[Case]:
    """A watch is opened again after 70 or 75 s without a bookmark, so that each takes longer than a minute."""
    first_status = next(write for write in reference.names if write.phase == "Running")
    return [
        life_with(partial(Fault, HangWatch(plural), first_status, Moment.ANSWERED), reference)
        for plural in ("trainingruns", "pods")
    ]


def same_name_again(plural: str, reference: Recording) -> Case:
    """A run is deleted and another of its name created while a watch is held: the new one starts from nothing."""

    async def run(lab: Lab) -> tuple[list[str], bool]:
        async with lab.bench() as bench:
            await life.start(bench.cluster, bench.kubelet)
            if plural:
                bench.proxy.hold(plural)
            first = (await bench.cluster.run(life.RUN))["metadata"]["uid"]
            await bench.cluster.delete("trainingruns", life.RUN)
            await life.create(bench.cluster)
            second = (await bench.cluster.run(life.RUN))["metadata"]["uid"]
            await asyncio.sleep(1.0)
            bench.proxy.release()
            await until_equal(bench, "recreated", reference.states["running"], mask=without_retained_claim)
            bench.kubelet.trainers_seen_together = 0  # two runs, each with its own
            return [*always(bench), *([] if first != second else ["the run was not recreated"])], True

    return Case(f"same name again while {plural or 'nothing'} is held", run)


def without_retained_claim(state: State) -> State:
    return {name: body for name, body in state.items() if name != f"persistentvolumeclaims/r-ID-trainer{PREDECESSORS}"}


async def test_stale_views(reference: Recording, run_campaign: Callable) -> None:
    every = cases(reference)
    await run_campaign("stale_views", [*every, *hung_watches(reference)], [*every[:-7:24], *every[-7:-5]])
