"""GPU memory of one inline run with LoRA over a bfloat16 base, and with QLoRA over the same base in 4 bits (nf4).

All train a few steps on a dataset with a reward function, each in a process of its own; QLoRA once more with the
transformers engine. The last line is JSON; `ratio` is the peak of LoRA over the peak of QLoRA, `ratio_sampling` the
seconds of the transformers engine over ours. Without a GPU only LoRA runs, as a dry run. --micro 0 leaves the size of a
pass to the trainer, and whether activations are kept; with any other they are recomputed.

    python tests/bench/memory.py --shape tiny                     a dry run on any machine
    python tests/bench/memory.py --packages DIR                   on a GPU; DIR holds packages the machine lacks
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / folder for folder in ("images/contract", "images/trainer", "tests")]
sys.path[:0] = [str(path) for path in (*SOURCES, Path(__file__).parent)]

import trainer_work  # noqa: E402

from rig import locked_versions  # noqa: E402

SIDES = {"lora": ("none", "auto"), "qlora": ("nf4", "auto"), "qlora_transformers": ("nf4", "transformers")}


def main() -> None:
    options = _options()
    trainer_work.prepare(options)
    if options.side:
        print(json.dumps(_write_model(options) if options.side == "model" else _measure(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        where = "--folder", folder
        has_gpu = trainer_work.in_own_process("model", *where)["has_gpu"]
        sides = {side: trainer_work.in_own_process(side, *where) for side in SIDES if has_gpu or side == "lora"}
    names = ("shape", "prompts", "group", "prompt_tokens", "new_tokens", "micro", "rank")
    work = {name: getattr(options, name) for name in names}
    ratios = _ratios(sides) if has_gpu else {"ratio": None}
    print(json.dumps({"bench": "memory", "work": work, "versions": locked_versions.running(), **sides, **ratios}))


def _ratios(sides: dict[str, dict[str, Any]]) -> dict[str, float]:
    def ratio(name: str, over: str, under: str) -> float:
        return round(sides[over][name] / sides[under][name], 3)

    return {
        "ratio": ratio("peak_gib", "lora", "qlora"),
        "ratio_sampling": ratio("seconds_sampling", "qlora_transformers", "qlora"),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=4, group=8, new_tokens=256, micro=4)
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def _write_model(options: argparse.Namespace) -> dict[str, Any]:
    """On disk, because 4 bits are made while a model is read."""
    import torch

    from clotho_trainer.model.tiny import make_tokenizer

    tokenizer = make_tokenizer()
    trainer_work.make_model(options.shape, tokenizer).save_pretrained(options.folder / "model")
    tokenizer.save_pretrained(options.folder / "model")
    return {"has_gpu": torch.cuda.is_available()}


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    from clotho_trainer import train

    quantization, engine = SIDES[options.side]
    run = {
        "model": {"name": str(options.folder / "model"), "quantization": quantization, "dtype": "auto"},
        "inline": {"groupSize": options.group, "maxCompletionTokens": options.new_tokens},
        "training": {
            "steps": options.steps,
            "batchSize": options.prompts * options.group,
            "maxTokens": options.prompt_tokens + options.new_tokens + 8,
            **({"microBatchSize": options.micro, "gradientCheckpointing": True} if options.micro else {}),
            "lora": {"rank": options.rank, "alpha": 2 * options.rank},
        },
        "inference": {"engine": engine, "maxBatchSize": options.prompts * options.group},
    }
    records = [{"prompt": text} for text in trainer_work.prompt_texts(options)]
    output = options.folder / options.side
    result = train(run, dataset=records, rewards={"chance": _chance}, output=output)
    peaks = [step["gpu/memory_peak_bytes"] for step in result.metrics if "gpu/memory_peak_bytes" in step]
    return {
        "steps": len(result.metrics),
        "weights_gib": _gib(result._backend.live.model.get_memory_footprint()),  # type: ignore[attr-defined]
        "peak_gib": _gib(max(peaks)) if peaks else None,
        "seconds_training": round(result.metrics[-1]["seconds_training"], 3),
        "seconds_training_by_step": [round(step["seconds_training"], 3) for step in result.metrics],
        "seconds_sampling": round(result.metrics[-1]["seconds_sampling"], 3),
    }


def _chance(output: str, expected: object) -> float:
    """Answers of random weights cannot be judged, and without differences there is no gradient."""
    return random.random()  # noqa: S311


def _gib(count: float) -> float:
    return round(count / 2**30, 2)


if __name__ == "__main__":
    main()
