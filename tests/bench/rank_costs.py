"""What the work of a rank costs, piece by piece, on a machine with a share of a core.

`python rank_costs.py --side 0` and `1` are two ranks that do what they are asked, a JSON line each: generate, train,
take a batch, sum gradients. `measured` starts them, slows them down and asks.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "images" / part for part in ("contract", "api-server", "trainer", "environment")]
sys.path[:0] = [str(source) for source in (*SOURCES, Path(__file__).parent, ROOT / "tests", ROOT / "dev")]

import slow_machine  # noqa: E402
import trainer_run  # noqa: E402
import trainer_work  # noqa: E402
from slow_machine import undisturbed  # noqa: E402

_TIMES = 3  # each is measured; the median counts


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds, by the number of groups where it matters."""

    first_token: float  # of one group
    decode_step: dict[int, float]  # one token for each row
    http: dict[int, float]  # of a group, by the answers that each of its requests asks for
    train: dict[int, float]
    lease: dict[int, float]  # from the API server's bytes to rows
    deliver: dict[int, float]  # rows to the other rank
    submit: float  # a group, one after the other
    reduce: float  # gradients of two ranks
    gradient_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    trainer_work.add_options(parser, prompts=8, group=8, new_tokens=40, micro=0)
    trainer_run.add_options(parser)


def measured(options: argparse.Namespace, share: float, sizes: tuple[int, int]) -> Costs:
    options = argparse.Namespace(**vars(options) | {"prompts": max(sizes)})
    with slow_machine.slow_machines(2) as machines, _asked(options, machines) as ranks:
        for machine in machines:
            machine.slow_down(share)
        first = ranks[0]
        small, most = sizes
        in_turn = [undisturbed(lambda: _generated(first, options, most)) for _ in range(_TIMES)]
        inside, together, singly = zip(*in_turn, strict=True)
        whole = {small: first.median("generate", small, options.new_tokens), most: median(inside)}
        begun = {groups: first.median("generate", groups, 1) for groups in sizes}
        train = {groups: first.median("train", groups) for groups in sizes}
        lease = {groups: first.median("lease", groups) for groups in sizes}
        _slowest(ranks, "meet", trainer_run.free_port())
        deliver = {groups: _median(partial(_slowest, ranks, "deliver", groups)) for groups in sizes}
        reduce = _median(partial(_slowest, ranks, "reduce"))
        gradient_bytes = int(first.ask("gradient_bytes"))
        first_token = first.median("generate", 1, 1)
    steps = options.new_tokens - 1
    return Costs(
        first_token=first_token,
        decode_step={groups: (whole[groups] - begun[groups]) / steps for groups in sizes},
        http={options.group: _excess(together, inside) / most, 1: _excess(singly, inside) / most},
        train=train,
        lease=lease,
        deliver=deliver,
        submit=asyncio.run(_submit(options)),
        reduce=reduce,
        gradient_bytes=gradient_bytes,
    )


@dataclass
class Rank:
    process: subprocess.Popen[str]
    url: str = ""

    def send(self, *request: object) -> None:
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self) -> float:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("answer "):
                return float(line.split()[1])
        raise SystemExit(f"a rank ended with exit code {self.process.wait()} before it answered")

    def ask(self, *request: object) -> float:
        self.send(*request)
        return self.answer()

    def median(self, *request: object) -> float:
        return _median(lambda: self.ask(*request))


def _slowest(ranks: list[Rank], *request: object) -> float:
    """All of them at once."""
    for rank in ranks:
        rank.send(*request)
    return max([rank.answer() for rank in ranks])


def _median(measure: Callable[[], float]) -> float:
    return median(undisturbed(measure) for _ in range(_TIMES))


@contextmanager
def _asked(options: argparse.Namespace, machines: list[slow_machine.SlowMachine]) -> Iterator[list[Rank]]:
    ranks = []
    try:
        for index, machine in enumerate(machines):
            command = [sys.executable, __file__, *trainer_work.arguments(options), "--side", str(index)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            machine.add(process.pid)
            ranks.append(Rank(process))
        for rank in ranks:
            rank.url = f"http://127.0.0.1:{rank.answer():.0f}"
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()


def _excess(longer: Sequence[float], shorter: Sequence[float]) -> float:
    return max(0.0, median(one - other for one, other in zip(longer, shorter, strict=True)))


def _generated(rank: Rank, options: argparse.Namespace, groups: int) -> tuple[float, float, float]:
    """Inside the engine's process, over HTTP with a request for each group, and with one for each of its answers."""
    inside = rank.ask("generate", groups, options.new_tokens)
    together, singly = (asyncio.run(_ask_all(rank.url, options, groups, n)) for n in (options.group, 1))
    return inside, together, singly


async def _ask_all(url: str, options: argparse.Namespace, groups: int, n: int) -> float:
    import aiohttp

    headers = {"Authorization": f"Bearer {trainer_run.TOKEN}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def ask(prompt: list[int]) -> None:
            sampling = {"n": n, "max_new_tokens": options.new_tokens, "ignore_eos": True}
            body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
            async with session.post(f"{url}/generate", json=body) as response:
                response.raise_for_status()
                await response.read()

        began = time.perf_counter()
        prompts = trainer_work.token_prompts(options, groups)
        await asyncio.gather(*(ask(prompt) for prompt in prompts for _ in range(options.group // n)))
        return time.perf_counter() - began


async def _submit(options: argparse.Namespace, count: int = 60) -> float:
    """To a real API server, as one environment pod does it."""
    import aiohttp

    from rig.trajectory_servers import start_ours

    (group,) = trainer_work.scored_groups(options, 1)
    body = {"batch_size": options.group, "max_token_len": 4096, "num_steps": 9, "starting_step": 0}
    body |= {"wandb_group": "", "wandb_project": "", "checkpoint_dir": "", "save_checkpoint_interval": 1}
    with tempfile.TemporaryDirectory() as folder:
        server = start_ours(Path(folder) / "data")
        try:
            async with aiohttp.ClientSession(server.url, raise_for_status=True) as session:
                await (await session.post("/register", json=body)).read()
                seconds = []
                for _ in range(count):
                    began = time.perf_counter()
                    await (await session.post("/scored_data", data=msgspec.json.encode(group))).read()
                    seconds.append(time.perf_counter() - began)
        finally:
            server.kill()
    return median(seconds)


class Worker:
    """One rank, in its own process."""

    def __init__(self, options: argparse.Namespace) -> None:
        from clotho_trainer.model.tiny import make_tokenizer
        from clotho_trainer.training.local.backend import LocalBackend

        self._options = options
        tokenizer = make_tokenizer()
        model = trainer_work.make_model(options.shape, tokenizer)
        config = trainer_run.config(options)
        self.backend = LocalBackend(config, model, tokenizer, Path(tempfile.mkdtemp()), int(options.side))

    async def run(self) -> None:
        _answer(await self._serve())
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, *arguments = json.loads(line)
            if name == "generate":
                _answer(await self._generate(*arguments))
            else:
                call: Callable[..., float] = getattr(self, name)
                _answer(await asyncio.to_thread(call, *arguments))

    async def _serve(self) -> int:
        from aiohttp import web

        from clotho_trainer.inference.server import InferenceServer

        server, port = InferenceServer(trainer_run.TOKEN), trainer_run.free_port()
        server.service = trainer_run.service(self.backend)
        runner = web.AppRunner(server.application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await self.backend.engine.start()
        await self._generate(1, 8)  # warms up
        self.train(1)
        return port

    async def _generate(self, groups: int, tokens: int) -> float:
        from clotho_trainer.inference.core.engine import Request, Sampling

        sampling = Sampling(max_tokens=tokens, ignore_end=True)
        began = time.perf_counter()
        prompts = trainer_work.token_prompts(self._options, groups)
        engine, group = self.backend.engine, self._options.group
        await asyncio.gather(*(engine.generate(Request(tuple(prompt), sampling, group)) for prompt in prompts))
        return time.perf_counter() - began

    def train(self, groups: int) -> float:
        batch = self._batch(groups)
        began = time.perf_counter()
        self.backend.step(batch, 1e-6)
        return time.perf_counter() - began

    def lease(self, groups: int) -> float:
        from clotho_trainer.rollouts.api_server import Lease
        from clotho_trainer.training import groups as received
        from clotho_trainer.training.batch import prepare

        sent = [msgspec.Raw(msgspec.json.encode(each)) for each in trainer_work.scored_groups(self._options, groups)]
        body = msgspec.json.encode({"lease_id": "1", "batch": sent, "expires_in": 60.0})
        began = time.perf_counter()
        lease = msgspec.json.decode(body, type=Lease)
        lease.digest()
        sound = [received.decode(raw, self.backend.vocabulary) for raw in lease.batch]
        prepare(sound, self.backend.rules, 0)
        return time.perf_counter() - began

    def meet(self, port: int) -> float:
        from clotho_trainer.training.local import team

        rank = int(self._options.side)
        store = team.open_store(port) if rank == 0 else team.reach_store("127.0.0.1", port)
        self._team = team.connect(rank, 2, store, timeout_seconds=120, collectives="gloo")
        return 0.0

    def deliver(self, groups: int) -> float:
        batch = self._batch(groups) if self._team.rank == 0 else None
        self._team.broadcast_bytes(b"")  # begin together
        began = time.perf_counter()
        if batch is not None:
            self._team.lead(batch, 1e-6)
        else:
            batch, _ = self._team.follow()
        self._team.shares(batch.rows)
        return time.perf_counter() - began

    def reduce(self) -> float:
        import torch

        trained = self._trained()
        for each in trained:
            each.grad = torch.ones_like(each)
        self._team.broadcast_bytes(b"")
        began = time.perf_counter()
        self._team.sum_gradients(trained)
        seconds = time.perf_counter() - began
        for each in trained:
            each.grad = None
        return seconds

    def gradient_bytes(self) -> float:
        return 4.0 * sum(each.numel() for each in self._trained())

    def _trained(self) -> list[Any]:
        return [each for each in self.backend.live.model.parameters() if each.requires_grad]

    def _batch(self, groups: int) -> Any:
        from clotho_trainer.training.batch import prepare

        return prepare(trainer_work.scored_groups(self._options, groups), self.backend.rules, 0)


def _answer(number: float) -> None:
    print(f"answer {number}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    asyncio.run(Worker(parser.parse_args()).run())


if __name__ == "__main__":
    main()
