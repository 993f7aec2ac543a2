"""How long the page of all runs takes to answer, beside a page without data. One JSON line comes last.

python tests/bench/web.py [--runs 1000]
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("operator", "images/contract", "dev", "tests")]

import aiohttp  # noqa: E402

from clotho_dev.cluster import binaries  # noqa: E402
from clotho_dev.cluster.control_plane import PROGRAMS, ControlPlane  # noqa: E402
from clotho_dev.cluster.kubectl import Kubectl  # noqa: E402
from rig.cluster_access import Body, ClusterAccess, run_manifest  # noqa: E402
from rig.namespaces import fresh_namespace  # noqa: E402
from rig.page_objects import running  # noqa: E402
from rig.page_process import clotho_ui  # noqa: E402

WRITERS = 16
ROUNDS = 40


async def write_runs(cluster: ClusterAccess, count: int) -> None:
    status = running(40, 80)
    numbers = iter(range(count))

    async def write() -> None:
        for number in numbers:
            name = f"run-{number:04}"
            await cluster.client.create(cluster.folder("trainingruns"), run_manifest(name), Body)
            await cluster.patch("trainingruns", name, {"status": status}, "/status")

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def milliseconds(session: aiohttp.ClientSession, path: str) -> tuple[float, int]:
    began = time.perf_counter()
    async with session.get(path) as answer:
        size = len(await answer.read())
        assert answer.status == 200, answer.status
    return (time.perf_counter() - began) * 1000, size


async def milliseconds_to_follow(session: aiohttp.ClientSession, cluster: ClusterAccess) -> float:
    """From the write of a status until its row has arrived."""
    async with session.get("/api/runs", headers={"Accept": "text/event-stream"}) as answer:
        began: float | None = None
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            if began is not None:
                return (time.perf_counter() - began) * 1000
            began = time.perf_counter()
            await cluster.patch("trainingruns", "run-0000", {"status": running(41, 80)}, "/status")
    raise AssertionError("the stream has ended")


async def measure(control_plane: ControlPlane, cluster: ClusterAccess, count: int) -> dict[str, float]:
    await write_runs(cluster, count)
    async with clotho_ui(control_plane.kubeconfig) as printed:
        address, _, key = printed.partition("#key=")
        limits = aiohttp.ClientTimeout(total=120)
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(
            address, headers=headers, timeout=limits, read_bufsize=2**24, max_line_size=2**24
        ) as session:
            first, size = await milliseconds(session, "/api/runs")
            empty, full = [], []
            for _ in range(ROUNDS):  # in turns, so that a busy moment affects both
                empty.append((await milliseconds(session, "/environments"))[0])
                full.append((await milliseconds(session, "/api/runs"))[0])
            follow = await milliseconds_to_follow(session, cluster)
    return {
        "runs": count,
        "answer_bytes": size,
        "first_answer_ms": round(first, 1),
        "empty_page_ms": round(statistics.median(empty), 1),
        "runs_ms": round(statistics.median(full), 1),
        "runs_p95_ms": round(statistics.quantiles(full, n=20)[-1], 1),
        "beside_empty_ms": round(statistics.median(full) - statistics.median(empty), 1),
        "follow_ms": round(follow, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder), binaries.find(PROGRAMS)) as control_plane:
        kubectl = Kubectl(control_plane.programs["kubectl"], control_plane.kubeconfig)
        kubectl.run("apply", "--server-side", f"--filename={ROOT / 'crds'}")
        kubectl.run("wait", "--for=condition=Established", "crd", "--all")
        with fresh_namespace(kubectl) as namespace:

            async def run() -> dict[str, float]:
                async with ClusterAccess(control_plane.kubeconfig, namespace) as cluster:
                    return await measure(control_plane, cluster, count)

            print(json.dumps(asyncio.run(run())))


if __name__ == "__main__":
    main()
