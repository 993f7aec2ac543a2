"""Does the policy learn alike with every engine, and with weights that change in flight or not? Same task, same seeds.

The letters task on the tiny model. `in_turn`: generate a batch, train on it, and so on. `in_flight` and `drained`:
both at the same time with two batches in flight, so that most sequences live through an update, or hold it up;
`one_in_flight`, `four_in_flight` and `eight_in_flight`: with as many batches. A setting is `ENGINE:SCHEDULE` or
`ENGINE:SCHEDULE:LOSS`; the loss `cispo` is truncated importance sampling, the default `dapo` clips instead. The last
line is JSON: for each setting and seed the mean reward of the first and last five steps, and the step at which the mean
of five steps reached 0.9, with the seconds until then. The engine `fp8` is the fast one over a base in 8 bits, on a
GPU, where `--dtype bfloat16` makes the others comparable.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("images/contract", "images/trainer", "tests")]

from rig import locked_versions  # noqa: E402

LETTERS, GROUP, TOKENS, GOAL = "abcdefgh", 16, 16, 0.9
BATCHES_IN_FLIGHT = {
    "in_turn": 0,
    "one_in_flight": 1,
    "in_flight": 2,
    "drained": 2,
    "four_in_flight": 4,
    "eight_in_flight": 8,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="transformers:in_turn,fast:in_turn,fast:in_flight,fast:drained")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--packages", type=Path, help="a folder of unpacked packages that this machine lacks")
    options = parser.parse_args()
    if options.packages:
        sys.path.append(str(options.packages))
    results: dict[str, Any] = {}
    for setting in options.settings.split(","):
        runs = [asyncio.run(_learn(setting, seed, options)) for seed in range(options.seeds)]
        goals = [_steps_to_goal(rewards) for rewards, _ in runs]
        results[setting] = {
            "first5": [round(mean(rewards[:5]), 3) for rewards, _ in runs],
            "last5": [round(mean(rewards[-5:]), 3) for rewards, _ in runs],
            "mean": round(mean(mean(rewards) for rewards, _ in runs), 3),
            "seconds": round(sum(seconds[-1] for _, seconds in runs), 1),
            "steps_to_goal": goals,
            "seconds_to_goal": [goal and round(run[1][goal - 1], 1) for goal, run in zip(goals, runs, strict=True)],
        }
        print(json.dumps({setting: results[setting]}), file=sys.stderr, flush=True)
    versions = locked_versions.running()
    print(json.dumps({"bench": "learning", "steps": options.steps, "versions": versions, **results}))


def _steps_to_goal(rewards: list[float]) -> int | None:
    return next((n for n in range(5, len(rewards) + 1) if mean(rewards[n - 5 : n]) >= GOAL), None)


async def _learn(setting: str, seed: int, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """The rewards of the steps, and the seconds after which each was done."""
    from clotho_trainer.model import tiny
    from clotho_trainer.training.batch import prepare
    from clotho_trainer.training.local import backend as local_backend

    _, schedule, *_ = setting.split(":")
    with tempfile.TemporaryDirectory() as name:
        tiny.write(Path(name) / "model", seed)
        backend = local_backend.load_backend(_config(Path(name) / "model", setting, seed, options), Path(name))
        await backend.engine.start()
        queue: asyncio.Queue[Any] = asyncio.Queue(len(LETTERS))
        letters = LETTERS * BATCHES_IN_FLIGHT[schedule]
        producers = [asyncio.create_task(_produce(backend, letter, queue)) for letter in letters]
        rewards, seconds, began = [], [], time.monotonic()
        for _ in range(options.steps):
            if not producers:
                groups = await asyncio.gather(*(_group(backend, letter) for letter in LETTERS))
            else:
                groups = [await queue.get() for _ in LETTERS]
            batch = prepare(groups, backend.rules, backend.version)
            await asyncio.to_thread(backend.step, batch, 1e-2)
            rewards.append(batch.figures["reward/mean"])
            seconds.append(time.monotonic() - began)
        for producer in producers:
            producer.cancel()
        await backend.engine.stop()
    return rewards, seconds


async def _produce(backend: Any, letter: str, queue: "asyncio.Queue[Any]") -> None:
    while True:
        await queue.put(await _group(backend, letter))


async def _group(backend: Any, letter: str) -> Any:
    from clotho_contract.trajectory import ScoredGroup
    from clotho_trainer.inference.core.engine import Request, Sampling

    prompt = tuple(backend.tokenizer(f"{letter}>")["input_ids"])
    samples = await backend.engine.generate(Request(prompt, Sampling(max_tokens=TOKENS, ignore_end=True), GROUP))
    return ScoredGroup(
        tokens=[[*prompt, *sample.tokens] for sample in samples],
        masks=[[-100] * len(prompt) + list(sample.tokens) for sample in samples],
        inference_logprobs=[[1.0] * len(prompt) + list(sample.logprobs) for sample in samples],
        scores=[sample.text.count(letter) / TOKENS for sample in samples],
    )


def _config(model: Path, setting: str, seed: int, options: argparse.Namespace) -> Any:
    from clotho_contract.config import RunConfig, RunIdentity
    from clotho_contract.settings import Inference, Lora, Loss, Model, Training

    engine, schedule, *loss = setting.split(":")
    return RunConfig(
        run=RunIdentity(name="learning", namespace="bench", id="learning"),
        model=Model(name=str(model), dtype=options.dtype, quantization="fp8" if engine == "fp8" else "none"),
        training=Training(
            steps=options.steps,
            batch_size=len(LETTERS) * GROUP,
            max_tokens=64,
            learning_rate=1e-2,
            lora=Lora(rank=8, alpha=16.0),
            loss=Loss(type=loss[0]) if loss else Loss(),  # type: ignore[arg-type]
            seed=seed,
        ),
        inference=Inference(
            engine="fast" if engine == "fp8" else engine,
            weight_updates="drained" if schedule == "drained" else "in_flight",
            max_batch_size=max(BATCHES_IN_FLIGHT[schedule], 2) * len(LETTERS) * GROUP,
        ),  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main()
