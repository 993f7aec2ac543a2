"""One GRPO step of Qwen3-8B's shape (random weights, LoRA) through Clotho and through TRL with vLLM, in one run.

Ours is measured from end to end: API server, trainer with its inference server, and an environment, each a process of
its own, speaking HTTP; `fp8` is the same with the base in 8 bits, `fp8-cache` with the key-value cache in 8 bits, too.
`ours:2` and the like generate two batches together, of which the second is trained one step later; so does
`trl-vllm:2`.
`serving` then asks the inference server alone, for answers of equal and of ragged lengths or what --loads names, and
compares with the same requests made inside its process. `trl-vllm` is TRL with vLLM on the same GPU, at its fastest
settings; `vllm` is vLLM alone with merged weights and with an adapter, on the loads of `serving`; `stock` is TRL with
the generation of Transformers. vLLM may need another torch than ours: --peers-python names the interpreter of these
three. The last line is JSON; in `ratios` more than 1 means that ours is faster.

    python tests/bench/trainer.py --shape tiny --sides ours,serving,stock      a dry run on any machine
    python tests/bench/trainer.py                                              on a GPU, with vLLM installed
    python tests/bench/trainer.py --sides ours,trl-vllm,ours:2,trl-vllm:2
    python tests/bench/trainer.py --sides serving,vllm --loads 32-rows,256-rows,long-prompts
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "images" / part for part in ("contract", "api-server", "trainer", "environment")]
sys.path[:0] = [str(source) for source in (*SOURCES, Path(__file__).parent, ROOT / "tests")]

import trainer_peers  # noqa: E402
import trainer_run  # noqa: E402
import trainer_work  # noqa: E402

from rig import locked_versions  # noqa: E402

OURS = ("ours", "fp8", "fp8-cache")


def main() -> None:
    options = _options()
    trainer_work.prepare(options)
    if options.side == "trainer":
        sys.exit(run_trainer(options))
    if options.side:
        sides = {**dict.fromkeys(OURS, _ours), "serving": _serving, "client": _client, **trainer_peers.SIDES}
        _choose_variant(options)
        measure = sides[options.side]
        print(json.dumps(measure(options) | {"versions": locked_versions.running()}))
        return
    pythons = dict.fromkeys(trainer_peers.SIDES, options.peers_python)
    names = options.sides.split(",")
    figures = {
        side: trainer_work.in_own_process(side, python=pythons.get(side.partition(":")[0], sys.executable))
        for side in names
    }
    print(json.dumps({"bench": "trainer", "work": _work(options), **figures, "ratios": _ratios(figures)}))


def _choose_variant(options: argparse.Namespace) -> None:
    """A side may say how many batches it generates together."""
    options.side, _, batches = options.side.partition(":")
    if batches:
        options.together = options.batches_in_flight = int(batches)


def _ratios(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Seconds a step of the others over ours; tokens a second of ours over those of vLLM."""
    steps = {name: side["seconds_per_step"] for name, side in figures.items() if "seconds_per_step" in side}
    ratios = {
        f"step_{ours}_to_{other}": steps[other] / steps[ours]
        for ours in steps
        for other in steps
        if ours.partition(":")[0] in OURS and other.partition(":")[0] in trainer_peers.SIDES
    }
    if {"serving", "vllm"} <= figures.keys():
        for kind in trainer_peers.VLLM_KINDS:
            for load, rate in figures["serving"]["http_tokens_per_second"].items():
                theirs = figures["vllm"][kind][f"{load}_tokens_per_second"]
                ratios[f"generation_{load}_to_vllm_{kind}"] = rate / theirs
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=8, group=16, new_tokens=512, micro=8)
    trainer_run.add_options(parser)
    parser.add_argument("--sides", default="ours,fp8,serving,trl-vllm,vllm", help="what is measured, in this order")
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter of trl-vllm, vllm and stock")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "--loads",
        type=_loads,
        default="equal,ragged",
        help=f"what serving and vllm are asked for: {', '.join(trainer_work.LOADS)}",
    )
    parser.add_argument("--load", choices=trainer_work.LOADS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _loads(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in trainer_work.LOADS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(trainer_work.LOADS)}")
    return names


def _work(options: argparse.Namespace) -> dict[str, Any]:
    names = ("shape", "prompts", "group", "prompt_tokens", "new_tokens", "micro", "rank", "engine", "ragged")
    return {name: getattr(options, name) for name in names}


def _ours(options: argparse.Namespace) -> dict[str, Any]:
    """Only the model is made up on the spot instead of being loaded."""
    trainer = [__file__, *sys.argv[1:], "--side", "trainer"]
    return trainer_run.measured(lambda ports: trainer_run.config(options, ports), trainer)


def run_trainer(options: argparse.Namespace) -> int:
    from clotho_trainer.__main__ import main as run
    from clotho_trainer.model import load
    from clotho_trainer.model.tiny import make_tokenizer
    from clotho_trainer.training.local import backend as local_backend

    load.load_model = lambda _, tokenizer, *__: trainer_work.make_model(options.shape, tokenizer)  # type: ignore[assignment]
    local_backend.load_tokenizer = lambda _: make_tokenizer()  # type: ignore[assignment]
    return run(options.arguments)


def _serving(options: argparse.Namespace) -> dict[str, Any]:
    from clotho_trainer.model.tiny import make_tokenizer
    from clotho_trainer.training.local.backend import LocalBackend

    tokenizer = make_tokenizer()
    model = trainer_work.make_model(options.shape, tokenizer)
    config = trainer_run.config(trainer_work.largest(options))
    backend = LocalBackend(config, model, tokenizer, Path(tempfile.mkdtemp()))
    return asyncio.run(_serve(backend, options))


async def _serve(backend: Any, options: argparse.Namespace) -> dict[str, Any]:
    from aiohttp import web

    from clotho_trainer.inference.server import InferenceServer

    server, port = InferenceServer(trainer_run.TOKEN), trainer_run.free_port()
    server.service = trainer_run.service(backend)
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    began = time.perf_counter()
    await backend.engine.start()
    started = round(time.perf_counter() - began, 2)
    inside: dict[str, float] = {}
    over_http: dict[str, float] = {}
    for load in options.loads:
        await _inside(backend, options, load)  # warms up
        more = ["--load", load, "--url", f"http://127.0.0.1:{port}"]
        here, there = [], []
        for _ in range(2):  # in turns, so that both see the same machine
            here.append(await _inside(backend, options, load))
            there.append((await asyncio.to_thread(trainer_work.in_own_process, "client", *more))["tokens_per_second"])
        inside[load], over_http[load] = trainer_run.mean(here), trainer_run.mean(there)
    await runner.cleanup()
    await backend.engine.stop()
    return {
        "start_seconds": started,
        "inside_tokens_per_second": inside,
        "http_tokens_per_second": over_http,
        "http_overhead": {load: round(inside[load] / over_http[load] - 1, 4) for load in inside},
    }


async def _inside(backend: Any, options: argparse.Namespace, load: str) -> float:
    from clotho_trainer.inference.core.engine import Request, Sampling

    async def ask(prompt: list[int], n: int, tokens: int) -> int:
        sampling = Sampling(max_tokens=tokens, ignore_end=True)
        return sum(len(c.tokens) for c in await backend.engine.generate(Request(tuple(prompt), sampling, n)))

    began = time.perf_counter()
    made = await asyncio.gather(*(ask(*request) for request in trainer_work.requests(options, load)))
    return round(sum(made) / (time.perf_counter() - began), 1)


def _client(options: argparse.Namespace) -> dict[str, Any]:
    return asyncio.run(_ask_over_http(options))


async def _ask_over_http(options: argparse.Namespace) -> dict[str, Any]:
    import aiohttp
    import msgspec

    headers = {"Authorization": f"Bearer {trainer_run.TOKEN}"}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:

        async def ask(prompt: list[int], n: int, tokens: int) -> int:
            sampling = {"n": n, "max_new_tokens": tokens, "ignore_eos": True}
            body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "flat_logprobs": True}
            async with session.post(f"{options.url}/generate", json=body) as response:
                answer = msgspec.json.decode(await response.read())
            return sum(len(a["output_ids"]) for a in (answer if isinstance(answer, list) else [answer]))

        began = time.perf_counter()
        made = await asyncio.gather(*(ask(*request) for request in trainer_work.requests(options, options.load)))
        return {"load": options.load, "tokens_per_second": round(sum(made) / (time.perf_counter() - began), 1)}


if __name__ == "__main__":
    main()
