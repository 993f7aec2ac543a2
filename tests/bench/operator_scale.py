"""How fast and how cheap the operator is: TrainingRuns on KWOK nodes and a real API server. One JSON line comes last.

python tests/bench/operator_scale.py [--runs 1000] [--idle-seconds 60]
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from pretended_nodes import WatchEvent, cluster_with_nodes, serve_pods, watch

from clotho_dev.cluster.control_plane import ControlPlane
from rig.cluster_access import ClusterAccess, run_manifest
from rig.operator_process import OperatorProcess

CREATORS = 16
PODS_A_RUN = 3
SAMPLES = 15
SETTLE_SECONDS = 35.0  # longer than progress waits for its status write
LEASE_RENEWAL_SECONDS = 5.0  # the default of the setting; not a cost of the runs
WRITE_VERBS = ("create", "update", "patch", "delete")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Timeline:
    """When each run's pods appeared and when its status first was Running, by this process's clock."""

    def __init__(self) -> None:
        self.created: dict[str, float] = {}
        self.pods: dict[str, list[float]] = {}
        self.running: dict[str, float] = {}
        self.changed = asyncio.Event()

    def pod_event(self, event: WatchEvent, now: float) -> None:
        if event.type == "ADDED":
            self.pods.setdefault(event.object.metadata.labels.get("clotho.dev/run", ""), []).append(now)
        self.changed.set()

    def run_event(self, event: WatchEvent, now: float) -> None:
        if event.object.status.phase == "Running":
            self.running.setdefault(event.object.metadata.name, now)
        self.changed.set()

    async def until(self, what: str, check: Callable[[], bool], limit_seconds: float) -> None:
        try:
            async with asyncio.timeout(limit_seconds):
                while not check():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise SystemExit(
                f"not {what} after {limit_seconds:g} s: {len(self.running)} runs Running, "
                f"{sum(len(p) >= PODS_A_RUN for p in self.pods.values())} with all pods"
            ) from None


class Usage:
    """CPU seconds and peak memory of a process, from /proc."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def cpu(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        return self._status("VmHWM:")

    def resident_mib(self) -> float:
        return self._status("VmRSS:")

    def _status(self, field: str) -> float:
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition(field)[2].split()[0]) / 1024


def bench_run(name: str) -> dict[str, Any]:
    """Its pods report the same step for ever, which is no stall here."""
    return run_manifest(name, training={"steps": 100, "batchSize": 8}, stall={"afterSeconds": 86_400})


async def create(access: ClusterAccess, timeline: Timeline, name: str) -> None:
    timeline.created[name] = time.monotonic()
    await access.client.create(access.folder("trainingruns"), bench_run(name), dict[str, Any])


async def single_runs(access: ClusterAccess, timeline: Timeline) -> tuple[list[float], list[float]]:
    """One after another on an idle system: milliseconds until all pods exist, and until status says Running."""
    pods, running = [], []
    for number in range(SAMPLES):
        name = f"single-{number}"
        await create(access, timeline, name)
        await timeline.until(f"Running ({name})", lambda name=name: name in timeline.running, 60)  # type: ignore[misc]
        pods.append((timeline.pods[name][PODS_A_RUN - 1] - timeline.created[name]) * 1000)
        running.append((timeline.running[name] - timeline.created[name]) * 1000)
        await asyncio.sleep(0.5)
    return pods, running


async def heals(access: ClusterAccess, timeline: Timeline) -> list[float]:
    """Milliseconds from the disappearance of a deleted pod until its replacement exists."""
    times = []
    for number in range(SAMPLES):
        name = f"single-{number}"
        victim = next(
            p
            for p in await access.pods(name)
            if p["metadata"]["labels"]["app.kubernetes.io/component"] == "environment"
        )
        count, deleted = len(timeline.pods[name]), time.monotonic()
        await access.delete("pods", victim["metadata"]["name"], gracePeriodSeconds=0)
        await timeline.until(f"healed ({name})", lambda name=name, count=count: len(timeline.pods[name]) > count, 60)  # type: ignore[misc]
        times.append((timeline.pods[name][-1] - deleted) * 1000)
        await asyncio.sleep(0.3)
    return times


async def create_all(names: Iterable[str], create_one: Callable[[str], Awaitable[None]]) -> None:
    left = iter(names)

    async def creator() -> None:
        for name in left:
            await create_one(name)

    await asyncio.gather(*(creator() for _ in range(CREATORS)))


async def burst(access: ClusterAccess, timeline: Timeline, runs: int) -> dict[str, float]:
    every = [f"burst-{number}" for number in range(runs)]
    started = time.monotonic()
    await create_all(every, partial(create, access, timeline))
    applied = time.monotonic()
    say(f"{runs} runs applied in {applied - started:.1f} s")
    limit_seconds = max(120.0, runs * 0.6)
    await timeline.until(
        "all pods", lambda: all(len(timeline.pods.get(n, ())) >= PODS_A_RUN for n in every), limit_seconds
    )
    with_pods = max(timeline.pods[n][PODS_A_RUN - 1] for n in every)
    say(f"all pods exist after {with_pods - started:.1f} s")
    await timeline.until("all Running", lambda: all(n in timeline.running for n in every), limit_seconds)
    latencies = [timeline.pods[n][PODS_A_RUN - 1] - timeline.created[n] for n in every]
    status = [timeline.running[n] - timeline.created[n] for n in every]
    return {
        "applied_s": applied - started,
        "all_pods_s": with_pods - started,
        "all_running_s": max(timeline.running[n] for n in every) - started,
        **{f"pods_p{p}_s": value for p, value in percentiles(latencies)},
        **{f"running_p{p}_s": value for p, value in percentiles(status)},
    }


def percentiles(values: list[float]) -> Iterable[tuple[int, float]]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return [(p, cuts[p - 1]) for p in (50, 95, 99)]


async def writes(operator: OperatorProcess) -> float:
    return sum(
        [
            await operator.metric(f'clotho_api_requests_total{{code="{code}",verb="{verb}"')
            for verb in WRITE_VERBS
            for code in ("200", "201", "404", "409", "422", "429", "500")
        ]
    )


async def restart(plane: ControlPlane, folder: Path, runs: int) -> dict[str, float]:
    """A new process with everything standing: until it has looked at every run, and its CPU until 5 s later."""
    started = time.monotonic()
    async with OperatorProcess(plane.kubeconfig, folder / "operator-2.log", {}) as operator:
        async with asyncio.timeout(max(120.0, runs * 0.12)):
            while await operator.metric("clotho_reconcile_seconds_count") < runs:  # noqa: ASYNC110
                await asyncio.sleep(1)  # not more often: a scrape costs CPU that is measured here
        taken = time.monotonic() - started
        await asyncio.sleep(5)
        return {
            "restart_s": taken,
            "restart_cpu_s": Usage(operator.pid).cpu(),
            "restart_writes": await writes(operator),
        }


async def alone(access: ClusterAccess, timeline: Timeline) -> dict[str, float]:
    pods, running = await single_runs(access, timeline)
    healed = await heals(access, timeline)
    times = {"single_pods_ms": pods, "single_running_ms": running, "heal_ms": healed}
    return {name: statistics.median(samples) for name, samples in times.items()}


async def together(
    plane: ControlPlane, access: ClusterAccess, timeline: Timeline, operator: OperatorProcess, runs: int
) -> dict[str, float]:
    """The burst, what it cost everybody, and what was written until all was quiet again."""
    processes = {entry.component.name: Usage(entry.process.pid) for entry in plane.processes.running}
    processes["operator"] = Usage(operator.pid)
    before = {name: process.cpu() for name, process in processes.items()}
    written, began = await writes(operator), time.monotonic()

    async def writes_per_run() -> float:
        renewals = (time.monotonic() - began) / LEASE_RENEWAL_SECONDS
        return (await writes(operator) - written - renewals) / runs

    figures = await burst(access, timeline, runs)
    figures |= {f"{name.replace('-', '_')}_cpu_s": process.cpu() - before[name] for name, process in processes.items()}
    figures["writes_per_run"] = await writes_per_run()
    await asyncio.sleep(SETTLE_SECONDS)
    figures["writes_per_run_settled"] = await writes_per_run()
    return figures


async def standing(operator: OperatorProcess, seconds: float) -> dict[str, float]:
    usage = Usage(operator.pid)
    before, resident = usage.cpu(), usage.resident_mib()
    await asyncio.sleep(seconds)
    return {
        "idle_cpu_s_per_minute": (usage.cpu() - before) * 60 / seconds,
        "idle_rss_growth_mib": usage.resident_mib() - resident,
        "peak_rss_mib": usage.peak_mib(),
    }


async def until_leading(operator: OperatorProcess) -> None:
    async with asyncio.timeout(60):
        while await operator.metric("clotho_leader") != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def measure(runs: int, idle_seconds: float, folder: Path) -> dict[str, float]:
    figures: dict[str, float] = {"runs": runs}

    def note(found: dict[str, float], coming: str) -> None:
        figures.update({name: round(value, 3) for name, value in found.items()})
        say(f"{json.dumps(found)}\n{coming} ...")

    async with cluster_with_nodes(folder) as (plane, access):
        timeline = Timeline()
        handlers = {"pods": timeline.pod_event, "trainingruns": timeline.run_event}
        watches = [asyncio.create_task(watch(access, plane.kubeconfig, *each)) for each in handlers.items()]
        async with OperatorProcess(plane.kubeconfig, folder / "operator.log", {}) as operator:
            await until_leading(operator)
            note(await alone(access, timeline), f"{runs} runs at once")
            note(await together(plane, access, timeline, operator, runs), f"standing for {idle_seconds:g} s")
            note(await standing(operator, idle_seconds), "restarting")
            await operator.terminate()
        note(await restart(plane, folder, runs), "done")
        for task in watches:
            task.cancel()
    return figures


async def with_answering_pods(measured: Callable[[Path], Awaitable[dict[str, float]]]) -> dict[str, float]:
    """In a folder of its own, which stays, with the logs in it, where the measurement fails."""
    folder = Path(tempfile.mkdtemp(prefix="clotho-bench-"))
    server = await serve_pods()
    try:
        figures = await measured(folder)
    except BaseException:
        say(f"logs: {folder}")
        raise
    finally:
        await server.cleanup()
    shutil.rmtree(folder)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    measured = partial(measure, arguments.runs, arguments.idle_seconds)
    print(json.dumps(uvloop.run(with_answering_pods(measured))))


if __name__ == "__main__":
    main()
