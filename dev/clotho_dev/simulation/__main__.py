"""`make simulate-scale GPUS=8,64,512`: how a run scales, simulated from measured inputs."""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import msgspec

from clotho_dev.simulation.inputs import RECORDED, Inputs, load
from clotho_dev.simulation.model import Outcome, Schedule, Shape, Simulation
from clotho_dev.simulation.report import Study, advice, legend, table

SCHEDULES: tuple[Schedule, ...] = ("synchronous", "asynchronous")
_IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64)  # groups for each GPU
_LARGE = 64  # GPUs; beyond, fewer steps and GPUs say as much


def main() -> None:
    options = _options()
    inputs = load(options.inputs)
    work = msgspec.structs.replace(inputs.work, groups_per_gpu=options.groups or inputs.work.groups_per_gpu)
    if options.equal:
        work = msgspec.structs.replace(work, mean_answer=None)
    inputs = msgspec.structs.replace(inputs, work=work)
    found = study(inputs, options.gpus, options.seed)
    print(legend(inputs), table(found), *advice(found), sep="\n")
    results = [asdict(each) | {"goodput": study_goodput} for each, study_goodput in _goodputs(found)]
    print(json.dumps({"seed": options.seed, "results": results, "advice": advice(found)}))


def study(inputs: Inputs, gpus: Sequence[int], seed: int) -> Study:
    alone = [Shape(ranks=1, schedule=schedule) for schedule in SCHEDULES]
    shapes = [
        Shape(ranks=count - replicas, replicas=replicas, schedule=schedule)
        for count in gpus
        for schedule in SCHEDULES
        for replicas in sorted({0, count // 4, count // 2})
    ]
    size = min(max(gpus), _LARGE)
    fewer = [Shape(ranks=size, schedule="asynchronous", groups_in_flight=each * size) for each in _IN_FLIGHT]
    with ProcessPoolExecutor() as pool:
        outcomes = list(pool.map(partial(_simulate, inputs, seed), (*alone, *shapes, *fewer)))
    return Study(
        alone=dict(zip(SCHEDULES, outcomes, strict=False)),
        outcomes=outcomes[len(alone) : len(alone) + len(shapes)],
        fewer_environments=outcomes[len(alone) + len(shapes) :],
    )


def _simulate(inputs: Inputs, seed: int, shape: Shape) -> Outcome:
    return Simulation(inputs, shape, steps=6 if shape.gpus <= _LARGE else 3, seed=seed).run()


def _goodputs(found: Study) -> list[tuple[Outcome, float]]:
    return [(each, round(found.goodput(each), 4)) for each in (*found.alone.values(), *found.outcomes)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=_counts, default=(8, 64, 512), help="numbers of GPUs, such as 8,64,512")
    parser.add_argument("--groups", type=_count, help="of a batch, for each GPU")
    parser.add_argument("--equal", action="store_true", help="answers of equal length instead of ragged ones")
    parser.add_argument("--inputs", type=Path, default=RECORDED, help="another file of measured inputs")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths of answers")
    return parser.parse_args()


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("give a number of groups from 1")
    return count


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(sorted({int(each) for each in text.split(",")}))
    if not counts or counts[0] < 2 or counts[-1] > 4096:
        raise argparse.ArgumentTypeError("give numbers of GPUs from 2 to 4096, separated by commas")
    return counts


if __name__ == "__main__":
    main()
