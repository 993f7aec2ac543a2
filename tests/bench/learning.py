"""Does the policy learn alike with every engine, and with weights that change in flight or not? Same task, same seeds.

The letters task on the tiny model. `in_turn`: generate a batch, train on it, and so on. `in_flight` and `drained`:
both at the same time with two batches in flight, so that most sequences live through an update, or hold it up. The
last line is JSON: mean reward of the first and last five steps for each setting and seed. The engine `fp8` is the fast
one over a base in 8 bits, on a GPU, where `--dtype bfloat16` makes the others comparable.
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
sys.path[:0] = [str(ROOT / "images" / part) for part in ("contract", "trainer")]
LETTERS, GROUP, TOKENS = "abcdefgh", 16, 16
_UPDATES: dict[str, Any] = {"in_turn": "in_flight"}  # nothing is in flight then


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
        runs = [asyncio.run(_learn(*setting.split(":"), seed, options)) for seed in range(options.seeds)]
        results[setting] = {
            "first5": [round(sum(rewards[:5]) / 5, 3) for rewards, _ in runs],
            "last5": [round(sum(rewards[-5:]) / 5, 3) for rewards, _ in runs],
            "mean": round(sum(sum(rewards) / len(rewards) for rewards, _ in runs) / len(runs), 3),
            "seconds": round(sum(seconds for _, seconds in runs), 1),
        }
        print(json.dumps({setting: results[setting]}), file=sys.stderr, flush=True)
    print(json.dumps({"bench": "learning", "steps": options.steps, **results}))


async def _learn(engine: str, updates: str, seed: int, options: argparse.Namespace) -> tuple[list[float], float]:
    from clotho_trainer.model import tiny
    from clotho_trainer.training.batch import prepare
    from clotho_trainer.training.local import backend as local_backend

    with tempfile.TemporaryDirectory() as name:
        tiny.write(Path(name) / "model", seed)
        backend = local_backend.load_backend(_config(Path(name) / "model", engine, updates, seed, options), Path(name))
        await backend.engine.start()
        queue: asyncio.Queue[Any] = asyncio.Queue(len(LETTERS))
        in_turn = updates == "in_turn"
        letters = "" if in_turn else LETTERS * 2
        producers = [asyncio.create_task(_produce(backend, letter, queue)) for letter in letters]
        rewards, began = [], time.monotonic()
        for _ in range(options.steps):
            if in_turn:
                groups = await asyncio.gather(*(_group(backend, letter) for letter in LETTERS))
            else:
                groups = [await queue.get() for _ in LETTERS]
            batch = prepare(groups, backend.rules, backend.version)
            await asyncio.to_thread(backend.step, batch, 1e-2)
            rewards.append(batch.figures["reward/mean"])
        for producer in producers:
            producer.cancel()
        await backend.engine.stop()
    return rewards, time.monotonic() - began


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


def _config(model: Path, engine: str, updates: str, seed: int, options: argparse.Namespace) -> Any:
    from clotho_contract.config import RunConfig, RunIdentity
    from clotho_contract.settings import Inference, Lora, Model, Training

    return RunConfig(
        run=RunIdentity(name="learning", namespace="bench", id="learning"),
        model=Model(name=str(model), dtype=options.dtype, quantization="fp8" if engine == "fp8" else "none"),
        training=Training(
            steps=options.steps,
            batch_size=len(LETTERS) * GROUP,
            max_tokens=64,
            learning_rate=1e-2,
            lora=Lora(rank=8, alpha=16.0),
            seed=seed,
        ),
        inference=Inference(
            engine="fast" if engine == "fp8" else engine,
            weight_updates=_UPDATES.get(updates, updates),
            max_batch_size=2 * len(LETTERS) * GROUP,
        ),  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main()
