"""Our API server beside atroposlib's `run-api`, on the same machine, with the same batch of 128 x 8192 tokens.

Prints the figures as one JSON line last; ratios above 1 mean that ours is better. Each server is used as its own clients use it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from trajectory_servers import ServerProcess, ToolUnavailableError, atropos_python, start_atropos, start_ours

GROUP_SIZE = 8
TRAINER = {
    "wandb_group": "bench",
    "wandb_project": "bench",
    "max_token_len": 8192,
    "checkpoint_dir": "",
    "save_checkpoint_interval": 1,
    "starting_step": 0,
    "num_steps": 1000,
}
PATIENCE = aiohttp.ClientTimeout(total=600)


class Client:
    """The requests of a trainer and an environment, timed."""

    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    async def register(self, sequences: int) -> None:
        body = {**TRAINER, "batch_size": sequences}
        async with self._session.post(self.server.url + "/register", json=body) as response:
            response.raise_for_status()

    async def enqueue(self, body: bytes) -> float:
        started = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self.server.url + "/scored_data", data=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()
        return time.perf_counter() - started

    async def batch(self, headers: dict[str, str]) -> tuple[float, int]:
        """Seconds until the last byte, and how many bytes of JSON they were."""
        started = time.perf_counter()
        async with self._session.get(self.server.url + "/batch", headers=headers) as response:
            response.raise_for_status()
            content = await response.read()
        seconds = time.perf_counter() - started
        if len(content) < 100_000:
            raise RuntimeError(f"no batch came: {content[:200]!r}")
        return seconds, len(content)

    async def status(self) -> float:
        started = time.perf_counter()
        async with self._session.get(self.server.url + "/status") as response:
            response.raise_for_status()
            await response.read()
        return time.perf_counter() - started


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


async def worst_status_during(client: Client, work: Callable[[], Awaitable[Any]]) -> tuple[Any, list[float]]:
    """Asks for /status all the while the work goes on."""
    busy = asyncio.ensure_future(work())
    latencies: list[float] = []
    while not busy.done():
        latencies.append(await client.status())
        await asyncio.sleep(0.002)
    return await busy, latencies


def percentile_99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


async def measure(server: ServerProcess, body: bytes, sequences: int, rounds: int) -> dict[str, float]:
    groups = sequences // GROUP_SIZE
    async with aiohttp.ClientSession(timeout=PATIENCE) as session:
        client = Client(server, session)
        await client.register(sequences)
        await client.enqueue(body)
        enqueues = [await client.enqueue(body) for _ in range(groups * rounds - 1)]
        plain = [await client.batch({"Accept-Encoding": "identity"}) for _ in range(rounds - 1)]
        (usual, _), statuses = await worst_status_during(client, lambda: client.batch({}))
        for _ in range(groups):
            await client.enqueue(body)
        _, more = await worst_status_during(client, lambda: client.batch({}))
    return {
        "batch_seconds": usual,
        "batch_identity_seconds": statistics.median(seconds for seconds, _ in plain),
        "batch_megabytes": plain[0][1] / 1e6,
        "enqueue_groups_per_second": len(enqueues) / sum(enqueues),
        "status_p99_ms": percentile_99(statuses + more) * 1000,
    }


async def memory_when_queued(server: ServerProcess, body: bytes, sequences: int, batches: int) -> dict[str, float]:
    async with aiohttp.ClientSession(timeout=PATIENCE) as session:
        client = Client(server, session)
        await client.register(sequences)
        groups = sequences // GROUP_SIZE
        await client.enqueue(body)
        for _ in range(groups - 1):
            await client.enqueue(body)
        one = server.resident_bytes()
        for _ in range(groups * (batches - 1)):
            await client.enqueue(body)
        return {"rss_1_batch_mb": one / 1e6, f"rss_{batches}_batches_mb": server.resident_bytes() / 1e6}


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4 if value < 1 else 2) for name, value in figures.items()}


async def compare(tokens: int, sequences: int, batches: int) -> dict[str, object]:
    body = make_group(tokens, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        server = start_ours(Path(folder) / "data")
        ours = await measure(server, body, sequences, rounds=4)
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
        theirs = await measure(server, body, sequences, rounds=2)
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
        "enqueue": ours["enqueue_groups_per_second"] / theirs["enqueue_groups_per_second"],
        "status_p99": theirs["status_p99_ms"] / ours["status_p99_ms"],
    }
    return {**result, "theirs": rounded(theirs), "ratios": rounded(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens in a sequence (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=128, help="sequences in a batch (default: %(default)s)")
    parser.add_argument(
        "--batches", type=int, default=20, help="batches queued to see the memory (default: %(default)s)"
    )
    options = parser.parse_args()
    print(json.dumps(asyncio.run(compare(options.tokens, options.sequences, options.batches))))


if __name__ == "__main__":
    main()
