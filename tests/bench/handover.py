"""What a step loses between two batches of answers, measured without a GPU.

API server, environment and trainer run as in `trainer.py`, each a process speaking HTTP; in the trainer a clock decides
when tokens come and how long a step takes, so that all that a step takes longer is lost: answers on their way to the
environment and back as a batch and new prompts. Reading prompts launches as many operations of PyTorch as a model of 36
layers does, with as much Python before each, because the decoder's thread gives the interpreter away with each of them,
while answers are written and the batch is read. `ours` is what ships; `as-they-come` waits for no other prompts before
it reads one, `default-interval` has Python's own interval for switching threads.

Medians of the steps after some that warm up; the last line is JSON.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "images" / part for part in ("contract", "api-server", "trainer", "environment")]
sys.path[:0] = [str(source) for source in (*SOURCES, Path(__file__).parent, ROOT / "tests")]

import trainer  # noqa: E402
import trainer_run  # noqa: E402
import trainer_work  # noqa: E402

SIDES = ("ours", "as-they-come", "default-interval")
_NOTES = "CLOTHO_BENCH_NOTES"  # the file in which the trainer notes its steps
_DEFAULT_INTERVAL = 5e-3
_TOKENS = 4  # of a turn of the decoder,
_TURN = 0.02  # which takes so many seconds
_OPERATIONS = 800  # to read prompts,
_PYTHON = range(600)  # added up before each: 15 microseconds
_STEP = 0.5  # seconds
_WARM_UP = 2


def main() -> None:
    options = _options()
    trainer_work.prepare(options)
    if options.side == "trainer":
        sys.exit(_trainer(options))
    if options.side:
        print(json.dumps(_measured(options)))
        return
    figures = {side: trainer_work.in_own_process(side) for side in SIDES}
    ours, *others = (figures[side]["lost_seconds"] for side in SIDES)
    ratios = {side: round(lost / ours, 2) for side, lost in zip(SIDES[1:], others, strict=True)}
    print(json.dumps({"bench": "handover", **figures, "lost_to_ours": ratios}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=8, group=16, new_tokens=512, micro=8)
    trainer_run.add_options(parser)
    parser.add_argument("--interval", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--as-they-come", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    parser.set_defaults(shape="tiny", engine="transformers", steps=10)
    return parser.parse_args()


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    changes = {"as-they-come": ["--as-they-come"], "default-interval": ["--interval", str(_DEFAULT_INTERVAL)]}
    command = [__file__, *trainer_work.arguments(options), *changes.get(options.side, []), "--side", "trainer"]
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        trainer_run.measured(lambda ports: trainer_run.config(options, ports), command, variables={_NOTES: str(notes)})
        steps = [json.loads(line) for line in notes.read_text().splitlines()][_WARM_UP:]
    fewest_turns = options.new_tokens // _TOKENS
    lost = [step["seconds"] - _STEP - fewest_turns * mean(step["turns"]) for step in steps]
    return {
        "lost_seconds": round(median(lost), 3),
        "most": round(max(lost), 3),
        "passes_over_prompts": median(len(step["passes"]) for step in steps),
        "seconds_a_pass": round(median(seconds for step in steps for seconds in step["passes"]), 4),
        "turns": median(len(step["turns"]) for step in steps),
        "steps": len(steps),
    }


def _trainer(options: argparse.Namespace) -> int:
    import torch

    from clotho_trainer.inference.core import live_engine
    from clotho_trainer.inference.transformers.engine import TransformersEngine
    from clotho_trainer.training.local.backend import LocalBackend

    tokens, logprobs = tuple(range(5, 5 + _TOKENS)), (-1 / 3,) * _TOKENS  # digits as many as others have
    operand, start = torch.zeros(16), TransformersEngine.start
    turns: list[float] = []
    passes: list[float] = []
    began = time.monotonic()

    async def start_with_interval(engine: Any) -> None:
        await start(engine)
        if options.interval:
            sys.setswitchinterval(options.interval)

    def advance(engine: Any) -> None:
        now = time.monotonic()
        if running := list(engine._scheduler.running):
            time.sleep(_TURN)
            turns.append(time.monotonic() - now)
            engine._write(running, [tokens] * len(running), [logprobs] * len(running))
        now = time.monotonic()
        if engine._may_admit and engine._scheduler.admit():
            for _ in range(_OPERATIONS):
                sum(_PYTHON)
                operand.add_(1)
            passes.append(time.monotonic() - now)

    def step(backend: Any, *_: Any) -> dict[str, float]:
        nonlocal began
        with backend.live.training():
            time.sleep(_STEP)
            backend.live.version += 1
            ended = time.monotonic()
            with Path(os.environ[_NOTES]).open("a") as notes:
                print(json.dumps({"seconds": ended - began, "turns": turns, "passes": passes}), file=notes)
            turns.clear()
            passes.clear()
            began = ended
        return {"loss": 0.0}

    if options.as_they_come:
        live_engine._BURST_OF_THOSE_ANSWERED = (0.0, 0.0)
    TransformersEngine.start = start_with_interval  # type: ignore[method-assign]
    TransformersEngine._enter = lambda _: None  # type: ignore[method-assign]
    TransformersEngine._advance = advance  # type: ignore[method-assign]
    LocalBackend.step = step  # type: ignore[method-assign]
    return trainer.run_trainer(options)


if __name__ == "__main__":
    main()
