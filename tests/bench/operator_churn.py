"""Changes without a pause, and a leader that is killed among them: runs are created, scaled, annotated and deleted, and
their pods deleted, beside standing ones, on KWOK nodes and a real API server. One JSON line comes last.

python tests/bench/operator_churn.py [--runs 200] [--rate 50] [--seconds 120]
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import uvloop
from operator_scale import Usage, bench_run, create_all, say, until_leading, with_answering_pods
from pretended_nodes import WatchEvent, cluster_with_nodes, end_deleted_pods, watch

from clotho.cluster.outcomes import ApiError, NotFound
from rig.cluster_access import ClusterAccess, eventually
from rig.operator_process import OperatorProcess, has_traceback

IN_FLIGHT = 64
SETTLE_LIMIT_SECONDS = 300.0  # and
SECONDS_A_RUN = 0.2  # for each one
SHARES = {"annotate": 20, "scale": 10, "delete_pod": 10, "create": 5, "delete": 5}


def patient_run(name: str) -> dict[str, Any]:
    """Its pods may be deleted as often as it happens."""
    run = bench_run(name)
    run["spec"]["restarts"] = {"limit": 1000, "backoffSeconds": 0}
    return run


class Population:
    """The runs that exist, with the number of environment pods that each was last given."""

    def __init__(self, access: ClusterAccess, standing: int) -> None:
        self._access = access
        self.wanted = {f"standing-{number}": 1 for number in range(standing)}
        self._passing: list[str] = []
        self._random = random.Random(0)  # noqa: S311 - the same changes every time
        self._scaling: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._made = 0
        self.done: Counter[str] = Counter()

    async def create_standing(self) -> None:
        await create_all(list(self.wanted), self._create_run)

    async def _create_run(self, name: str) -> None:
        await self._access.client.create(self._access.folder("trainingruns"), patient_run(name), dict[str, Any])

    async def change(self) -> None:
        kind = self._random.choices(list(SHARES), weights=list(SHARES.values()))[0]
        try:
            await self._changes[kind](self)
            self.done[kind] += 1
        except NotFound:  # another change has deleted it meanwhile
            self.done["overtaken"] += 1

    async def _annotate(self) -> None:
        change = {"metadata": {"annotations": {"bench": str(self._random.random())}}}
        await self._access.patch("trainingruns", self._any(), change)

    async def _scale(self) -> None:
        name, replicas = self._any(), self._random.randint(1, 3)
        environment = {**bench_run(name)["spec"]["environments"][0], "replicas": replicas}
        async with self._scaling[name]:  # else the last answer need not be of the last request
            await self._access.change_run(name, environments=[environment])
            if name in self.wanted:
                self.wanted[name] = replicas

    async def _delete_pod(self) -> None:
        pods = await self._access.client.list(
            self._access.folder("pods"), dict[str, Any], {"labelSelector": f"clotho.dev/run={self._any()}"}
        )
        for pod in pods["items"] or []:
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "environment":
                await self._access.delete("pods", pod["metadata"]["name"], gracePeriodSeconds=0)
                return

    async def _create(self) -> None:
        name = f"passing-{self._made}"
        self._made += 1
        await self._create_run(name)
        self.wanted[name] = 1
        self._passing.append(name)

    async def _delete(self) -> None:
        if self._passing:
            name = self._passing.pop(0)
            del self.wanted[name]
            await self._access.delete("trainingruns", name)

    def _any(self) -> str:
        return self._random.choice(list(self.wanted))

    _changes: ClassVar[dict[str, Callable[["Population"], Awaitable[None]]]] = {
        "annotate": _annotate,
        "scale": _scale,
        "delete_pod": _delete_pod,
        "create": _create,
        "delete": _delete,
    }

    async def until_settled(self, seen: "Seen") -> None:
        """Every run is Running with the pods that it was last given, and nothing is left of those that were deleted."""

        async def look() -> tuple[bool, list[str]]:
            pods = Counter(seen.pods.values())
            wrong = [name for name in seen.phases.keys() | pods.keys() if name not in self.wanted]
            wrong += [
                name
                for name, replicas in self.wanted.items()
                if seen.phases.get(name) != "Running" or pods[name] != 2 + replicas
            ]
            await asyncio.sleep(0.5)
            return not wrong, wrong[:10]

        await eventually("settled", look, SETTLE_LIMIT_SECONDS + SECONDS_A_RUN * len(self.wanted))


class Seen:
    """Phases of runs and runs of pods, as watches report them: listing thousands would be work for the API server."""

    def __init__(self) -> None:
        self.phases: dict[str, str] = {}
        self.pods: dict[str, str] = {}

    def run_event(self, event: WatchEvent, _: float) -> None:
        name = event.object.metadata.name
        if event.type == "DELETED":
            self.phases.pop(name, None)
        else:
            self.phases[name] = event.object.status.phase

    def pod_event(self, event: WatchEvent, _: float) -> None:
        metadata = event.object.metadata
        if event.type == "DELETED" or metadata.deletion_timestamp:
            self.pods.pop(metadata.name, None)
        else:
            self.pods[metadata.name] = metadata.labels["clotho.dev/run"]


async def churn(population: Population, rate: float, seconds: float) -> float:
    """Changes at this rate; the number that was made a second."""
    slots = asyncio.Semaphore(IN_FLIGHT)
    began = time.monotonic()

    async def one() -> None:
        async with slots:
            try:
                await population.change()
            except ApiError as error:
                population.done[type(error).__name__] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            await slots.acquire()
            slots.release()
            group.create_task(one())
    return population.done.total() / (time.monotonic() - began)


async def kill_leader(leader: OperatorProcess, follower: OperatorProcess, after: float) -> float:
    """Seconds until the other replica leads."""
    await asyncio.sleep(after)
    await leader.kill()
    killed = time.monotonic()
    await until_leading(follower)
    return time.monotonic() - killed


async def measure(runs: int, rate: float, seconds: float, folder: Path) -> dict[str, float]:
    async with cluster_with_nodes(folder) as (plane, access), AsyncExitStack() as replicas:
        seen = Seen()
        for follow in (
            end_deleted_pods(access, plane.kubeconfig),
            watch(access, plane.kubeconfig, "pods", seen.pod_event),
            watch(access, plane.kubeconfig, "trainingruns", seen.run_event),
        ):
            replicas.callback(asyncio.create_task(follow).cancel)
        operators = []
        for name in ("first", "second"):
            settings = {"CLOTHO_LEASE_IDENTITY": name}
            process = OperatorProcess(plane.kubeconfig, folder / f"{name}.log", settings)
            operators.append(await replicas.enter_async_context(process))
            if name == "first":
                await until_leading(process)
        first, second = operators
        population = Population(access, runs)
        await population.create_standing()
        say(f"{runs} runs applied")
        await population.until_settled(seen)
        before = Usage(second.pid).resident_mib()
        say(
            f"{runs} runs stand; {rate:g} changes a second for {seconds:g} s, the leader is killed after half of it ..."
        )
        cpu = Usage(second.pid)
        used = cpu.cpu()
        made, failed_over = await asyncio.gather(
            churn(population, rate, seconds), kill_leader(first, second, seconds / 2)
        )
        ended = time.monotonic()
        await population.until_settled(seen)
        figures = {
            "runs": float(runs),
            "changes_per_s": made,
            "fail_over_s": failed_over,
            "settled_s": time.monotonic() - ended,
            "operator_cpu_s": cpu.cpu() - used,
            "rss_before_mib": before,
            "rss_after_mib": cpu.resident_mib(),
            "tracebacks": float(has_traceback(second.log())),
        }
        say(f"changes: {dict(population.done)}")
        return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="runs that stand beside the changes")
    parser.add_argument("--rate", type=float, default=50.0, help="changes a second")
    parser.add_argument("--seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    measured = partial(measure, arguments.runs, arguments.rate, arguments.seconds)
    print(json.dumps(uvloop.run(with_answering_pods(measured))))


if __name__ == "__main__":
    main()
