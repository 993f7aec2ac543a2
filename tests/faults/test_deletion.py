"""The run, or its whole namespace, is deleted at every write of its life: nothing but a filled claim stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clotho.cluster.outcomes import NotFound
from faults import life, oracles
from faults.campaign import Case, Recording, always
from faults.fault import DeleteNamespace, DeleteRun, Fault
from faults.lab import Bench, Lab
from faults.masking import state_of
from faults.proxy import Moment
from rig.cluster_access import Body, eventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(3600)]
CLAIM = "persistentvolumeclaims/r-ID-trainer"
LIMIT_SECONDS = 90.0


def cases(reference: Recording) -> list[Case]:
    moments = (Moment.BEFORE, Moment.ANSWERED)
    return [
        *(deletion(reference, Fault(DeleteRun(), write, moment)) for write in reference.names for moment in moments),
        *(deletion(reference, Fault(DeleteNamespace(), write, Moment.BEFORE)) for write in reference.names),
    ]


def deletion(reference: Recording, template: Fault) -> Case:
    async def run(lab: Lab) -> tuple[list[str], bool]:
        fault = Fault(template.effect, template.at, template.moment)
        async with lab.bench() as bench:
            fault.arm(bench)
            await play_until_deleted(bench)
            if isinstance(fault.effect, DeleteNamespace) and fault.has_happened:
                complaints = await until_namespace_gone(bench)
            else:
                complaints = await until_only_claim(bench)
            return [*complaints, *oracles.no_loop(reference.writes, bench.proxy.recorded), *always(bench)], (
                fault.has_happened
            )

    return Case(str(template), run)


async def play_until_deleted(bench: Bench) -> None:
    async def reached(_: str) -> None:
        return None

    try:
        await life.play(bench.cluster, bench.kubelet, reached)
    except NotFound:
        assert bench.is_deleted, "the run disappeared by itself"


async def until_only_claim(bench: Bench) -> list[str]:
    """The claim stays when a checkpoint is known to be on it, and goes with a run that never had one."""

    async def look() -> tuple[bool, list[str]]:
        left = [*await state_of(bench.cluster)]
        return left in ([], [CLAIM]), left

    left = await eventually("empty but for the claim", look, LIMIT_SECONDS)
    statuses = [each for each in bench.proxy.recorded if each.write.phase and each.code == 200]
    had_checkpoint = any("checkpoint" in each.body["status"] for each in statuses)
    return ["the claim with a checkpoint is gone"] if had_checkpoint and not left else []


async def until_namespace_gone(bench: Bench) -> list[str]:
    async def look() -> tuple[bool, str]:
        try:
            body = await bench.cluster.client.get(f"/api/v1/namespaces/{bench.cluster.namespace}", Body)
        except NotFound:
            return True, ""
        return False, str(body["status"])

    await eventually("namespace gone", look, LIMIT_SECONDS)
    return []


async def test_deletion(reference: Recording, run_campaign: Callable) -> None:
    every = cases(reference)
    await run_campaign("deletion", every, every[::13])
