"""How fast and how cheap the operator is: TrainingRuns on KWOK nodes and a real API server. One JSON line comes last.

python tests/bench/operator_scale.py [--runs 1000] [--idle-seconds 60]
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("operator", "images/contract", "dev", "tests")]

import aiohttp  # noqa: E402
import msgspec  # noqa: E402
import uvloop  # noqa: E402
from aiohttp import web  # noqa: E402

from clotho.cluster.kubeconfig import from_kubeconfig  # noqa: E402
from clotho_dev.cluster import binaries  # noqa: E402
from clotho_dev.cluster.control_plane import PROGRAMS, ControlPlane  # noqa: E402
from clotho_dev.cluster.pki import Identity  # noqa: E402
from clotho_dev.cluster.process import Component  # noqa: E402
from rig.cluster_access import ClusterAccess, run_manifest  # noqa: E402
from rig.operator_process import OperatorProcess  # noqa: E402

NAMESPACE = "bench"
NODES = 50
CREATORS = 16
PODS_A_RUN = 3
SAMPLES = 15
SETTLE_SECONDS = 35.0  # longer than progress waits for its status write
LEASE_RENEWAL_SECONDS = 5.0  # the default of the setting; not a cost of the runs
WRITE_VERBS = ("create", "update", "patch", "delete")


class BenchControlPlane(ControlPlane):
    """Without the endpoint controllers: they refuse KWOK's loopback addresses, and would try again for ever."""

    def _controller_manager(self, service_accounts: Identity) -> Component:
        component = super()._controller_manager(service_accounts)
        off = ("endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller")
        return replace(component, argv=[*component.argv, "--controllers=*," + ",".join(f"-{name}" for name in off)])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Meta(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str] = {}


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta
    status: _Status = _Status()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Object


class Timeline:
    """When each run's pods appeared and when its status first was Running, by this process's clock."""

    def __init__(self) -> None:
        self.created: dict[str, float] = {}
        self.pods: dict[str, list[float]] = {}
        self.running: dict[str, float] = {}
        self.changed = asyncio.Event()

    def pod_event(self, event: _Event, now: float) -> None:
        if event.type == "ADDED":
            self.pods.setdefault(event.object.metadata.labels.get("clotho.dev/run", ""), []).append(now)
        self.changed.set()

    def run_event(self, event: _Event, now: float) -> None:
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


async def watch(cluster: ClusterAccess, kubeconfig: Path, plural: str, handle: Callable[[_Event, float], None]) -> None:
    who = from_kubeconfig(kubeconfig)
    connector = aiohttp.TCPConnector(ssl=who.tls or False)
    url = f"{who.server}{cluster.folder(plural)}?watch=true&resourceVersion=0"
    decoder = msgspec.json.Decoder(_Event)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=2**24, timeout=timeout) as http:
        while True:
            async with http.get(url) as answer:
                if answer.status == 200:
                    async for line in answer.content:
                        handle(decoder.decode(line), time.monotonic())
            await asyncio.sleep(0.2)  # a CRD that was created just now is not served yet


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


async def serve_pods() -> web.AppRunner:
    """KWOK's pods have addresses in 127.0.0.0/8 and no process behind them: one small server answers for all."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    progress = {"state": "training", "step": 5, "totalSteps": 100, "registered": True, "serving": True}
    progress["lastStepTime"] = started

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(progress | {"current_step": 5, "queue_size": 0})

    app = web.Application()
    for path in ("/progress", "/status", "/health"):
        app.router.add_get(path, answer)
    server = web.AppRunner(app, access_log=None)
    await server.setup()
    for port in (8000, 8001, 8002):
        await web.TCPSite(server, "0.0.0.0", port).start()
    return server


def node_manifest(number: int) -> dict[str, Any]:
    name = f"kwok-{number}"
    room = {"cpu": "1000", "memory": "4Ti", "pods": "1000", "ephemeral-storage": "4Ti", "nvidia.com/gpu": "1000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "kwok"},
        },
        "status": {"allocatable": room, "capacity": room},
    }


@asynccontextmanager
async def cluster_with_nodes(folder: Path) -> AsyncIterator[tuple[ControlPlane, ClusterAccess]]:
    programs = binaries.find([*PROGRAMS, "kwok"])
    with BenchControlPlane(folder, programs) as plane:
        async with ClusterAccess(plane.kubeconfig, NAMESPACE) as access:
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
            await access.client.create("/api/v1/namespaces", space, dict[str, Any])
            for number in range(NODES):
                await access.client.create("/api/v1/nodes", node_manifest(number), dict[str, Any])
            kubectl = [str(programs["kubectl"]), f"--kubeconfig={plane.kubeconfig}"]
            subprocess.run([*kubectl, "apply", "-f", str(ROOT / "crds")], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221
            subprocess.run([*kubectl, "wait", "--for=condition=Established", "crd", "--all"], check=True)  # noqa: ASYNC221
            stages = ROOT / "tests" / "rig" / "kwok-stages.yaml"
            flags = [f"--config={stages}", "--manage-all-nodes=true", "--node-lease-duration-seconds=40"]
            flags += ["--cidr=127.64.0.0/10", "--node-ip=127.0.0.1"]
            with (folder / "kwok.log").open("wb") as log:
                kwok = await asyncio.create_subprocess_exec(
                    str(programs["kwok"]), f"--kubeconfig={plane.kubeconfig}", *flags, stdout=log, stderr=log
                )
            try:
                await until_nodes_are_ready(access)
                yield plane, access
            finally:
                kwok.terminate()
                await kwok.wait()


async def until_nodes_are_ready(access: ClusterAccess) -> None:
    async with asyncio.timeout(120):
        while True:
            nodes = (await access.client.list("/api/v1/nodes", dict[str, Any], {}))["items"]
            if all(not node["spec"].get("taints") for node in nodes):
                return
            await asyncio.sleep(0.5)


def bench_run(name: str) -> dict[str, Any]:
    return run_manifest(name, training={"steps": 100, "batchSize": 8})


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


async def burst(access: ClusterAccess, timeline: Timeline, runs: int) -> dict[str, float]:
    names = iter([f"burst-{number}" for number in range(runs)])
    every = [f"burst-{number}" for number in range(runs)]
    started = time.monotonic()

    async def creator() -> None:
        for name in names:
            await create(access, timeline, name)

    await asyncio.gather(*(creator() for _ in range(CREATORS)))
    applied = time.monotonic()
    say(f"{runs} runs applied in {applied - started:.1f} s")
    limit_seconds = 600.0
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
        async with asyncio.timeout(120):
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
    before = usage.cpu()
    await asyncio.sleep(seconds)
    return {"idle_cpu_s_per_minute": (usage.cpu() - before) * 60 / seconds, "peak_rss_mib": usage.peak_mib()}


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
