"""The simulation of `make simulate-scale` beside real runs on this machine: one to four ranks on the CPU, with gloo.

Each rank has a slow machine of its own: a control group with a fixed share of a core. What one rank's work costs there,
and a sum of gradients between two, is measured piece by piece and is the simulation's input (rank_costs.py). Then whole
runs are measured (gang_run.py): API server, ranks and an environment, with answers of equal length and one batch in
flight, and with ragged answers and two. The last line is JSON; an error is simulated over measured seconds for a token,
less 1. Needs root, a CPU controller of control groups, and a machine that does nothing else.

    python tests/bench/simulated_scale.py
"""

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "images" / "contract"), str(Path(__file__).parent)]

import gang_run  # noqa: E402
import rank_costs  # noqa: E402

from clotho_dev.simulation.inputs import Decode, Inputs, Training, load  # noqa: E402
from clotho_dev.simulation.model import Outcome, Shape, Simulation  # noqa: E402

GROUPS = 4  # a rank and step, in real runs
SIZES = (2, 6)  # groups that the inputs are measured with
SHARE = 0.35  # of a core, for each rank
SOURCE = "measured on this machine"
LOADS = (
    gang_run.Load(name="in turn", is_ragged=False, batches_in_flight=1, steps=6),
    gang_run.Load(name="asynchronous", is_ragged=True, batches_in_flight=2, steps=30),
)


def main() -> None:
    options = _options()
    began = time.monotonic()
    costs = rank_costs.measured(options, SHARE, SIZES)
    print(json.dumps({"costs": asdict(costs), "seconds": round(time.monotonic() - began)}), file=sys.stderr, flush=True)
    results = []
    for ranks in options.ranks:
        gang = gang_run.Gang(options, ranks, SHARE, max_rows=SIZES[1] * options.group)
        for found in gang.measured(LOADS):
            results.append(_compared(ranks, found, _inputs(costs, options, found.load)))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    largest = max((each["error"] for each in results), key=abs)
    seconds = round(time.monotonic() - began)
    print(json.dumps({"bench": "simulated_scale", "results": results, "largest_error": largest, "seconds": seconds}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rank_costs.add_options(parser)
    parser.set_defaults(shape="small", prompts=GROUPS, prompt_tokens=16, rank=128)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    return parser.parse_args()


def _compared(ranks: int, measured: gang_run.Measured, inputs: Inputs) -> dict[str, Any]:
    """By seconds for a token: ragged steps differ in their number of tokens."""
    load, steps = measured.load, measured.steps
    outcome = _simulated(ranks, load, inputs)
    tokens = [step["tokens_per_second"] * step["seconds_per_step"] for step in steps]
    if load.is_ragged:
        per_token = sum(step["seconds_per_step"] for step in steps) / sum(tokens)
    else:
        per_token = median(step["seconds_per_step"] for step in steps) / median(tokens)
    return {
        "ranks": ranks,
        "load": load.name,
        "measured": _shown(median(step["seconds_per_step"] for step in steps), 1 / per_token),
        "simulated": _shown(outcome.seconds_per_step, outcome.tokens_per_second),
        "error": round(1 / outcome.tokens_per_second / per_token - 1, 3),
        "disturbed_steps": measured.disturbed,
        "steps": [[step["seconds_per_step"], step["seconds_training"], step["seconds_waiting"]] for step in steps],
    }


def _shown(seconds: float, rate: float) -> dict[str, float]:
    return {"seconds_per_step": round(seconds, 3), "tokens_per_second": round(rate, 1)}


def _simulated(ranks: int, load: gang_run.Load, inputs: Inputs) -> Outcome:
    """Groups follow each other without a pause in real runs, too, whatever the number in flight."""
    in_flight = GROUPS * ranks * load.batches_in_flight
    shape = Shape(ranks=ranks, schedule="asynchronous", groups_in_flight=in_flight)
    return Simulation(inputs, shape, steps=60).run()


def _inputs(costs: rank_costs.Costs, options: argparse.Namespace, work: gang_run.Load) -> Inputs:
    recorded, (small, large) = load(), SIZES
    group, prompt, answer = options.group, options.prompt_tokens, options.new_tokens
    tokens = [count * (prompt + group * answer) for count in SIZES]
    sent = group * (prompt + answer)  # tokens of a group on its way
    rate = (tokens[1] - tokens[0]) / (costs.train[large] - costs.train[small])
    answers_per_request = 1 if work.is_ragged else group  # fixed_lengths.py asks for ragged answers one by one
    http = costs.http[answers_per_request] * answers_per_request / group
    values: dict[str, dict[str, Any]] = {
        "prefill": {"tokens_per_second": prompt / costs.first_token},
        "http": {"seconds_per_request": http, "seconds_per_sequence": 0.0},
        "api_server": {"seconds_per_token": costs.submit / sent},
        "lease": {"seconds_per_token": costs.lease[large] / (large * sent)},
        "delivery": {"seconds_per_token": costs.deliver[large] / (large * sent)},
        "all_reduce": {
            "bytes": costs.gradient_bytes,
            "bytes_per_second_in_node": costs.gradient_bytes / costs.reduce,
        },
        "restart": {"seconds": 0.0, "hours_between_failures_of_a_gpu": 1e9},
        "environment": {"seconds_per_group": 0.0},
        "work": {
            "group_size": group,
            "groups_per_gpu": GROUPS,
            "prompt_tokens": prompt,
            "longest_answer": answer,
            "answers_per_request": answers_per_request,
            "mean_answer": 0.35 * answer if work.is_ragged else None,
            "max_rows": large * group,
        },
    }
    replaced = {name: msgspec.structs.replace(getattr(recorded, name), **each) for name, each in values.items()}
    return msgspec.structs.replace(
        recorded,
        decode=Decode(
            rows=tuple(count * group for count in SIZES),
            tokens_per_second=tuple(count * group / costs.decode_step[count] for count in SIZES),
            tokens_per_launch=1,
            source=SOURCE,
        ),
        training=Training(
            tokens_per_second=rate, seconds_per_step=max(0.0, costs.train[small] - tokens[0] / rate), source=SOURCE
        ),
        **replaced,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no process and no control group behind
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    main()
