"""`make soak MINUTES=n`: several runs live their lives again and again while operators and pods are killed at random.

At the end the same oracles as in the campaigns: every run has got where it should, and nothing is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from clotho.cluster.outcomes import ApiError
from clotho_dev.cluster import binaries
from clotho_dev.cluster.control_plane import PROGRAMS, ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from faults import life
from faults.campaign import always
from faults.forked_operators import ForkedOperators
from faults.lab import Bench, Lab
from rig.cluster_access import Body, component, eventually

ROOT = Path(__file__).parents[2]
RUNS = 3
PAUSE_SECONDS = (0.5, 4.0)


@dataclass
class Tally:
    lives: int = 0
    losses: int = 0  # operators and pods that were killed
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.lives} lives, {self.losses} operators and pods killed, {len(self.complaints)} complaints"


async def lives(bench: Bench, until: float, tally: Tally) -> None:
    """One life after the other."""
    while time.monotonic() < until:
        await play_with_losses(bench)
        kept = await kept_claim(bench)
        await bench.cluster.delete("persistentvolumeclaims", kept["metadata"]["name"])
        tally.lives += 1


async def kept_claim(bench: Bench) -> Body:
    """That of the checkpoint. Kubernetes removes the others a moment after the pods that used them."""

    async def look() -> tuple[bool, list[Body]]:
        claims = await bench.cluster.all("persistentvolumeclaims")
        return [component(each) for each in claims] == ["trainer"], claims

    (claim,) = await eventually("only the claim with the checkpoint is left", look, life.LIMIT_SECONDS)
    return claim


async def play_with_losses(bench: Bench) -> None:
    """A life whose pods may be killed: it restarts as often as that happens, and completes."""
    cluster, kubelet = bench.cluster, bench.kubelet
    kubelet.progress = life.TRAINING | life.CHECKPOINT
    await life.create(cluster)
    await cluster.until("checkpointed", lambda run: "checkpoint" in run.get("status", {}), life.RUN, life.LIMIT_SECONDS)
    await asyncio.sleep(random.uniform(*PAUSE_SECONDS))  # noqa: S311 - chance, no secret
    kubelet.progress = life.FINISHED
    await cluster.until_phase("Completed", life.RUN, 2 * life.LIMIT_SECONDS)
    await cluster.delete("trainingruns", life.RUN)
    await life.until_cleared(cluster)


async def kill_at_random(bench: Bench, chance: random.Random, tally: Tally) -> None:
    """Until cancelled: the operator, or a pod as an eviction would."""
    while True:
        await asyncio.sleep(chance.uniform(*PAUSE_SECONDS))
        if chance.random() < 0.5:
            await bench.kill()
            tally.losses += 1
            continue
        with contextlib.suppress(ApiError, IndexError):
            pod = chance.choice(await bench.cluster.pods(life.RUN))
            evicted = {"phase": "Failed", "reason": "Evicted", "message": "soak", "conditions": []}
            await bench.kubelet.set_status(pod, evicted)
            tally.losses += 1


async def soak_one(lab: Lab, number: int, until: float, tally: Tally) -> None:
    async with lab.bench() as bench:
        killer = asyncio.create_task(kill_at_random(bench, random.Random(number), tally))  # noqa: S311
        try:
            await lives(bench, until, tally)
        except AssertionError as error:
            tally.complaints.append(str(error))
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        tally.complaints += always(bench)


async def report(minutes: float, tally: Tally) -> None:
    """Until cancelled."""
    for minute in itertools.count(1):
        await asyncio.sleep(60)
        print(f"minute {minute} of {minutes:g}: {tally}", flush=True)


async def soak(control_plane: ControlPlane, folder: Path, minutes: float) -> int:
    until, tally = time.monotonic() + minutes * 60, Tally()
    reporting = asyncio.create_task(report(minutes, tally))
    async with ForkedOperators() as operators, Lab(control_plane, operators, folder) as lab:
        await asyncio.gather(*(soak_one(lab, number, until, tally) for number in range(RUNS)))
    reporting.cancel()
    print(f"{minutes:g} minutes: {tally}")
    for line in tally.complaints:
        print(f"  {line}")
    return 1 if tally.complaints else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    minutes = parser.parse_args().minutes
    with (
        tempfile.TemporaryDirectory() as name,
        ControlPlane(Path(name) / "control-plane", binaries.find(PROGRAMS)) as control_plane,
    ):
        kubectl = Kubectl(control_plane.programs["kubectl"], control_plane.kubeconfig)
        kubectl.run("apply", "--server-side", f"--filename={ROOT / 'crds'}")
        kubectl.run("wait", "--for=condition=Established", "crd", "--all")
        cases = Path(name) / "cases"
        cases.mkdir()
        return asyncio.run(soak(control_plane, cases, minutes))


if __name__ == "__main__":
    sys.exit(main())
