"""One GRPO step of Qwen3-8B's shape (random weights, LoRA) through Clotho and through stock TRL, in one run.

Ours is measured from end to end: API server, trainer with its inference server, and an environment, each a process of
its own, speaking HTTP; `fp8` is the same with the base in 8 bits. `serving` then asks the inference server alone, for
answers of equal and of ragged lengths, and compares with the same requests made inside its process. The last line is
JSON; `ratio` and `ratio_fp8` are stock seconds over ours.

    python tests/bench/trainer.py --shape tiny                    a dry run on any machine
    python tests/bench/trainer.py --packages DIR                  on a GPU; DIR holds packages the machine lacks
"""

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "images" / part for part in ("contract", "api-server", "trainer", "environment")]
TOKEN = "a-token-for-the-bench"
sys.path[:0] = [str(source) for source in (*SOURCES, Path(__file__).parent, ROOT / "tests")]

import trainer_work  # noqa: E402

from rig import locked_versions  # noqa: E402


def main() -> None:
    options = _options()
    if options.packages:
        sys.path.append(str(options.packages))  # last: what the machine has itself wins
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if options.side == "trainer":
        sys.exit(_trainer(options))
    if options.side:
        sides = {"ours": _ours, "fp8": _ours, "stock": _stock, "serving": _serving, "client": _client}
        measure = sides[options.side]
        print(json.dumps(measure(options)))
        return
    figures = {side: _in_own_process(side) for side in options.sides.split(",")}
    result: dict[str, Any] = {
        "bench": "trainer",
        "work": _work(options),
        "versions": locked_versions.running(),
        **figures,
    }
    for side, name in (("ours", "ratio"), ("fp8", "ratio_fp8")):
        if {side, "stock"} <= figures.keys():
            result[name] = round(figures["stock"]["seconds_per_step"] / figures[side]["seconds_per_step"], 3)
    print(json.dumps(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=8, group=16, new_tokens=512, micro=8)
    parser.add_argument("--steps", type=int, default=2, help="measured; more warm up")
    parser.add_argument("--ragged", action="store_true", help="our environment asks for answers of many lengths")
    parser.add_argument("--engine", default="auto", help="inference.engine of our side")
    parser.add_argument("--sides", default="ours,fp8,serving,stock", help="what is measured, in this order")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--load", choices=["equal", "ragged"], help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(options: argparse.Namespace) -> dict[str, Any]:
    names = ("shape", "prompts", "group", "prompt_tokens", "new_tokens", "micro", "rank", "engine", "ragged")
    return {name: getattr(options, name) for name in names}


def _in_own_process(side: str, *more: str) -> dict[str, Any]:
    """So that no side inherits the other's memory."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the side {side} failed with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps({"side": side, **result}), file=sys.stderr, flush=True)
    return result


def _config(options: argparse.Namespace, api_server: int = 1, inference: int = 1) -> Any:
    from clotho_contract.config import Endpoints, EnvironmentConfig, RunConfig, RunIdentity
    from clotho_contract.settings import Checkpoint, Inference, Lora, Model, Training

    rows = options.prompts * options.group
    steps = options.steps + 2  # the first compiles, the second begins with a half-made batch
    environment = {
        "prompts": options.prompts,
        "prompt_tokens": options.prompt_tokens,
        "max_tokens": options.new_tokens,
        "group_size": options.group,
        "concurrency": options.prompts * (2 if options.ragged else 1),  # ragged answers leave gaps for the next batch
        "ragged": options.ragged,
    }
    return RunConfig(
        run=RunIdentity(name="bench", namespace="bench", id="bench"),
        endpoints=Endpoints(api_server=f"http://127.0.0.1:{api_server}", inference=f"http://127.0.0.1:{inference}"),
        model=Model(name=options.shape, quantization="fp8" if options.side == "fp8" else "none"),
        training=Training(
            steps=steps,
            batch_size=rows,
            max_tokens=options.prompt_tokens + options.new_tokens,
            learning_rate=1e-6,
            lora=Lora(rank=options.rank, alpha=2.0 * options.rank),
            checkpoint=Checkpoint(every_steps=10_000),
            max_off_policy_batches=1,
        ),
        inference=Inference(max_batch_size=rows, engine=options.engine),
        environments=(
            EnvironmentConfig(
                name="bench", entry=str(Path(__file__).with_name("fixed_lengths.py")), config=environment
            ),
        ),
    )


def _ours(options: argparse.Namespace) -> dict[str, Any]:
    """The three real processes of a run; only the model is made up on the spot instead of being loaded."""
    from clotho_contract.config import render

    api_server, inference, status, environment = (_free_port() for _ in range(4))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.yaml").write_text(render(_config(options, api_server, inference)))
        commands = {
            "api-server": ["-m", "clotho_api_server", "--host", "127.0.0.1", "--port", str(api_server)],
            "trainer": [
                __file__,
                *sys.argv[1:],
                "--side",
                "trainer",
                "--folder",
                name,
                "--url",
                f"{inference},{status}",
            ],
            "environment": ["-m", "clotho_environment", "serve", "--port", str(environment)],
        }
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for part, command in commands.items():
                (folder / part).mkdir()
                variables = {"CLOTHO_TOKEN": TOKEN, "CLOTHO_DATA": str(folder / part)}
                variables |= {"CLOTHO_CONFIG": str(folder / "run.yaml"), "PYTHONPATH": os.pathsep.join(sys.path)}
                variables["CLOTHO_TERMINATION_MESSAGE"] = str(folder / part / "termination")
                log = (folder / f"{part}.log").open("wb")
                processes[part] = subprocess.Popen(
                    [sys.executable, *command], env=os.environ | variables, stdout=log, stderr=log
                )
            code = processes["trainer"].wait()
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait()
        lines = (folder / "trainer.log").read_text(errors="replace").splitlines()
        if code or os.environ.get("BENCH_LOGS"):
            for part in commands:
                tail = (folder / f"{part}.log").read_text(errors="replace").splitlines()[-30:]
                print(f"--- {part}", *tail, sep="\n", file=sys.stderr, flush=True)
    if code:
        raise SystemExit(f"the trainer ended with exit code {code}")
    return _from_log([json.loads(line) for line in lines if line.startswith("{")], options)


def _from_log(lines: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    steps = [line for line in lines if "seconds_per_step" in line]
    measured = steps[2:]
    total, training = (_mean([step[key] for step in measured]) for key in ("seconds_per_step", "seconds_training"))
    tokens = _mean([step["tokens_per_second"] * step["seconds_per_step"] for step in measured])
    peaks = [step["gpu/memory_peak_bytes"] / 2**30 for step in steps if "gpu/memory_peak_bytes" in step]
    shown = ("fast engine serves", "activations are", "engine is ready", "transformers engine", "in 8 bits")
    return {
        "seconds_per_step": total,
        "train_seconds": training,
        "generate_seconds": round(total - training, 3),
        "first_step_seconds": steps[0]["seconds_training"],
        "tokens_per_second": round(tokens / total, 1),
        "generated_tokens_per_second": round(tokens / (total - training), 1),
        "peak_gib": round(max(peaks), 1) if peaks else None,
        "clipped_share": steps[-1].get("clip_ratio/region_mean"),
        "logprob_difference": steps[-1].get("sampling/logprob_difference"),
        "log": [line["message"] for line in lines if any(part in line.get("message", "") for part in shown)],
    }


def _trainer(options: argparse.Namespace) -> int:
    from clotho_trainer.__main__ import main as run
    from clotho_trainer.model import load
    from clotho_trainer.model.tiny import make_tokenizer
    from clotho_trainer.training.local import backend as local_backend

    load.load_model = lambda _, tokenizer: trainer_work.make_model(options.shape, tokenizer)  # type: ignore[assignment]
    local_backend.load_tokenizer = lambda _: make_tokenizer()  # type: ignore[assignment]
    inference, status = options.url.split(",")
    return run(["train", "--host", "127.0.0.1", "--inference-port", inference, "--status-port", status])


def _serving(options: argparse.Namespace) -> dict[str, Any]:
    from clotho_trainer.model.tiny import make_tokenizer
    from clotho_trainer.training.local.backend import LocalBackend

    tokenizer = make_tokenizer()
    model = trainer_work.make_model(options.shape, tokenizer)
    backend = LocalBackend(_config(options), model, tokenizer, Path(tempfile.mkdtemp()))
    return asyncio.run(_serve(backend, options))


async def _serve(backend: Any, options: argparse.Namespace) -> dict[str, Any]:
    from aiohttp import web

    from clotho_trainer.inference.server import InferenceServer
    from clotho_trainer.inference.service import Service

    server, port = InferenceServer(TOKEN), _free_port()
    server.service = Service(
        engine=backend.engine,
        tokenizer=backend.tokenizer,
        model="bench",
        context=backend.context,
        vocabulary=backend.vocabulary,
        temperature=1.0,
    )
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    began = time.perf_counter()
    await backend.engine.start()
    started = round(time.perf_counter() - began, 2)
    await _inside(backend, options, "equal")  # warms up
    inside: dict[str, float] = {}
    over_http: dict[str, float] = {}
    for load in ("equal", "ragged"):
        more = ["--load", load, "--url", f"http://127.0.0.1:{port}"]
        here, there = [], []
        for _ in range(2):  # in turns, so that both see the same machine
            here.append(await _inside(backend, options, load))
            there.append((await asyncio.to_thread(_in_own_process, "client", *more))["tokens_per_second"])
        inside[load], over_http[load] = _mean(here), _mean(there)
    await runner.cleanup()
    await backend.engine.stop()
    return {
        "start_seconds": started,
        "inside_tokens_per_second": inside,
        "http_tokens_per_second": over_http,
        "http_overhead": {load: round(inside[load] / over_http[load] - 1, 4) for load in inside},
    }


def _requests(options: argparse.Namespace, load: str) -> list[tuple[list[int], int, int]]:
    """Prompt, answers, tokens of each. Ragged answers are asked for one by one, five batches of them."""
    chooser = random.Random(3)  # noqa: S311
    rows = options.prompts * options.group
    prompts = [[chooser.randrange(5, 40) for _ in range(options.prompt_tokens)] for _ in range(options.prompts)]
    if load == "equal":
        return [(prompt, options.group, options.new_tokens) for prompt in prompts]
    lengths = trainer_work.ragged_lengths(5 * rows, options.new_tokens)
    return [(prompts[index // options.group % options.prompts], 1, length) for index, length in enumerate(lengths)]


async def _inside(backend: Any, options: argparse.Namespace, load: str) -> float:
    from clotho_trainer.inference.core.engine import Request, Sampling

    async def ask(prompt: list[int], n: int, tokens: int) -> int:
        sampling = Sampling(max_tokens=tokens, ignore_end=True)
        return sum(len(c.tokens) for c in await backend.engine.generate(Request(tuple(prompt), sampling, n)))

    began = time.perf_counter()
    made = await asyncio.gather(*(ask(*request) for request in _requests(options, load)))
    return round(sum(made) / (time.perf_counter() - began), 1)


def _client(options: argparse.Namespace) -> dict[str, Any]:
    return asyncio.run(_ask_over_http(options))


async def _ask_over_http(options: argparse.Namespace) -> dict[str, Any]:
    import aiohttp
    import msgspec

    headers = {"Authorization": f"Bearer {TOKEN}"}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:

        async def ask(prompt: list[int], n: int, tokens: int) -> int:
            sampling = {"n": n, "max_new_tokens": tokens, "ignore_eos": True}
            body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
            async with session.post(f"{options.url}/generate", json=body) as response:
                answer = msgspec.json.decode(await response.read())
            return sum(len(a["output_ids"]) for a in (answer if isinstance(answer, list) else [answer]))

        began = time.perf_counter()
        made = await asyncio.gather(*(ask(*request) for request in _requests(options, options.load)))
        return {"load": options.load, "tokens_per_second": round(sum(made) / (time.perf_counter() - began), 1)}


def _stock(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import TrainerCallback

    ends: list[float] = []

    class Stopwatch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        trainer = _stock_trainer(options, folder, Stopwatch())
        sys.stdout, kept = sys.stderr, sys.stdout  # TRL prints its log lines
        trainer.train()
        sys.stdout = kept
    seconds = [after - before for before, after in pairwise(ends)]
    tokens = options.prompts * options.group * options.new_tokens
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "seconds_per_step": round(seconds[-1], 3),
        "first_step_seconds": round(seconds[0], 3),
        "tokens_per_second": round(tokens / seconds[-1], 1),
        "peak_gib": round(peak, 1) if peak is not None else None,
    }


def _stock_trainer(options: argparse.Namespace, folder: str, callback: Any) -> Any:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from clotho_trainer.model.tiny import make_tokenizer

    tokenizer = make_tokenizer()
    chooser = random.Random(1)  # noqa: S311
    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=options.prompts * options.group // options.micro,
        num_generations=options.group,
        max_completion_length=options.new_tokens,
        generation_kwargs={"min_new_tokens": options.new_tokens},
        learning_rate=1e-6,
        max_steps=2,  # one warms up, one is measured
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=trainer_work.make_model(options.shape, tokenizer),
        reward_funcs=lambda completions, **_: [chooser.random() for _ in completions],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": trainer_work.prompt_texts(options) * 2}),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        callbacks=[callback],
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 4)


if __name__ == "__main__":
    main()
