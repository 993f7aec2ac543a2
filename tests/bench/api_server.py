"""Our API server beside atroposlib's `run-api`: the same machine, the same batches of 128 x 8192 tokens.

Prints the figures as one JSON line last; a ratio above 1 means that ours is better.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import aiohttp

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("dev", "tests")]

from rig.trajectory_servers import ServerProcess, ToolUnavailableError, atropos_python, start_atropos, start_ours  # noqa: E402

T = TypeVar("T")
GROUP_SIZE = 8
ENVIRONMENTS = 8
TURNS = 3
BATCHES_IN_A_TURN = 4
TRAINER = {
    "wandb_group": "bench",
    "wandb_project": "bench",
    "max_token_len": 8192,
    "checkpoint_dir": "",
    "save_checkpoint_interval": 1,
    "starting_step": 0,
    "num_steps": 1000,
}
TIMEOUT = aiohttp.ClientTimeout(total=600)


def client_session() -> aiohttp.ClientSession:
    """One connection a request: uvicorn closes kept ones that waited while a large body blocked its event loop."""
    return aiohttp.ClientSession(timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0, force_close=True))


class Client:
    """The requests of a trainer and of environments."""

    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    async def register(self, sequences: int) -> None:
        body = {**TRAINER, "batch_size": sequences}
        async with self._session.post(self.server.url + "/register", json=body) as response:
            response.raise_for_status()

    async def enqueue(self, body: bytes, count: int) -> float:
        """Groups a second, sent by several environments at once: each sends its next when it has its answer."""
        left = iter(range(count))

        async def environment() -> None:
            for _ in left:
                await self._send(body)

        started = time.perf_counter()
        await asyncio.gather(*(environment() for _ in range(ENVIRONMENTS)))
        return count / (time.perf_counter() - started)

    async def _send(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self.server.url + "/scored_data", data=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()

    async def status(self) -> float:
        """How long it took to be answered, or to be turned away."""
        started = time.perf_counter()
        with suppress(aiohttp.ClientError):
            async with self._session.get(self.server.url + "/status") as response:
                await response.read()
        return time.perf_counter() - started


def download_batch(url: str, encoding: str) -> tuple[float, int]:
    """In a process of its own: seconds until the last byte, and how many bytes came."""
    request = urllib.request.Request(url + "/batch", headers={"Accept-Encoding": encoding})  # noqa: S310
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310
        length = len(response.read())
    if length < 10_000:
        raise RuntimeError("no batch came")
    return time.perf_counter() - started, length


def make_group(tokens: int, seed: int) -> bytes:
    """What a managed environment sends: ids, masks and log-probabilities of every token."""
    source = random.Random(seed)  # noqa: S311
    rows = [[source.randrange(150_000) for _ in range(tokens)] for _ in range(GROUP_SIZE)]
    prompt = tokens // 8
    content = {
        "tokens": rows,
        "masks": [[-100] * prompt + row[prompt:] for row in rows],
        "scores": [source.random() for _ in rows],
        "inference_logprobs": [
            [1.0] * prompt + [-source.expovariate(2.0) for _ in range(tokens - prompt)] for _ in rows
        ],
    }
    return json.dumps(content).encode()


async def while_asking_for_status(client: Client, work: asyncio.Future[T]) -> tuple[T, list[float]]:
    """One /status every 10 ms, whether or not the one before has been answered."""
    asked: list[asyncio.Task[float]] = []
    while not work.done():
        asked.append(asyncio.create_task(client.status()))
        await asyncio.sleep(0.01)
    return await work, await asyncio.gather(*asked)


def percentile_99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


async def measure(server: ServerProcess, body: bytes, sequences: int, rounds: int) -> dict[str, float]:
    groups = sequences // GROUP_SIZE
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as trainer:
        async with client_session() as session:
            client = Client(server, session)
            await client.register(sequences)
            usual, identity, statuses = [], [], []
            for encoding, times in [("gzip, deflate", usual), ("identity", identity)] * rounds:
                await client.enqueue(body, groups)
                downloading = loop.run_in_executor(trainer, download_batch, server.url, encoding)
                (seconds, length), latencies = await while_asking_for_status(client, downloading)
                times.append(seconds)
                statuses += latencies
    return {
        "batch_seconds": statistics.median(usual),
        "batch_identity_seconds": statistics.median(identity),
        "batch_megabytes": length / 1e6,
        "status_p99_ms": percentile_99(statuses) * 1000,
    }


async def enqueue_in_turns(
    servers: Mapping[str, ServerProcess], body: bytes, sequences: int
) -> dict[str, dict[str, float]]:
    """One server after the other, several times: neighbours on the machine disturb all of them alike."""
    count = sequences // GROUP_SIZE * BATCHES_IN_A_TURN
    rates: dict[str, list[float]] = {name: [] for name in servers}
    cpu = dict.fromkeys(servers, 0.0)
    async with client_session() as session:
        for turn in range(TURNS):
            for name, server in servers.items():
                client = Client(server, session)
                if turn == 0:
                    await client.register(sequences)
                    await client.enqueue(body, ENVIRONMENTS)
                before = server.cpu_seconds()
                rates[name].append(await client.enqueue(body, count))
                cpu[name] += server.cpu_seconds() - before
    return {
        name: {
            "enqueue_groups_per_second": statistics.median(rates[name]),
            "enqueue_cpu_ms_per_group": cpu[name] * 1000 / count / TURNS,
        }
        for name in servers
    }


async def memory_when_queued(server: ServerProcess, body: bytes, sequences: int, batches: int) -> dict[str, float]:
    groups = sequences // GROUP_SIZE
    async with client_session() as session:
        client = Client(server, session)
        await client.register(sequences)
        await client.enqueue(body, groups)
        one = server.resident_bytes()
        await client.enqueue(body, groups * (batches - 1))
    return {"rss_1_batch_mb": one / 1e6, f"rss_{batches}_batches_mb": server.resident_bytes() / 1e6}


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4 if value < 1 else 2) for name, value in figures.items()}


async def compare_enqueueing(tokens: int, sequences: int) -> dict[str, object]:
    body = make_group(tokens, seed=0)
    servers: dict[str, ServerProcess] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            servers["ours"] = start_ours(Path(folder) / "data")
            servers["theirs"] = start_atropos(atropos_python())
            figures = await enqueue_in_turns(servers, body, sequences)
        finally:
            for server in servers.values():
                server.kill()
    ours, theirs = figures["ours"], figures["theirs"]
    ratios = {
        "enqueue": ours["enqueue_groups_per_second"] / theirs["enqueue_groups_per_second"],
        "enqueue_cpu": theirs["enqueue_cpu_ms_per_group"] / ours["enqueue_cpu_ms_per_group"],
    }
    return {"ours": rounded(ours), "theirs": rounded(theirs), "ratios": rounded(ratios)}


async def compare(tokens: int, sequences: int, batches: int) -> dict[str, object]:
    body = make_group(tokens, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        server = start_ours(Path(folder) / "data")
        ours = await measure(server, body, sequences, rounds=3)
        server.stop()
        server = start_ours(Path(folder) / "memory")
        ours |= await memory_when_queued(server, body, sequences, batches)
        server.kill()
        server = start_ours(Path(folder) / "memory")  # a crash with that queue
        ours["restart_to_ready_seconds"] = server.seconds_to_ready
        server.stop()
    result: dict[str, object] = {"tokens": tokens, "sequences": sequences, "ours": rounded(ours)}
    try:
        server = start_atropos(atropos_python())
    except ToolUnavailableError as error:
        return {**result, "skipped": f"atroposlib cannot be installed here: {error}"}
    try:
        theirs = await measure(server, body, sequences, rounds=1)
    finally:
        server.kill()
    server = start_atropos(atropos_python())
    try:
        theirs |= await memory_when_queued(server, body, sequences, min(batches, 4))  # more would not fit everywhere
    finally:
        server.kill()
    ratios = {
        "batch": theirs["batch_seconds"] / ours["batch_seconds"],
        "batch_identity": theirs["batch_identity_seconds"] / ours["batch_identity_seconds"],
        "status_p99": theirs["status_p99_ms"] / ours["status_p99_ms"],
    }
    return {
        **result,
        "theirs": rounded(theirs),
        "ratios": rounded(ratios),
        "enqueue": await compare_enqueueing(tokens, sequences),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens in a sequence (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=128, help="sequences in a batch (default: %(default)s)")
    parser.add_argument(
        "--batches", type=int, default=20, help="batches queued to see the memory (default: %(default)s)"
    )
    parser.add_argument("--only-enqueue", action="store_true", help="measure only how fast groups are taken")
    options = parser.parse_args()
    work = (
        compare_enqueueing(options.tokens, options.sequences)
        if options.only_enqueue
        else compare(options.tokens, options.sequences, options.batches)
    )
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main()
