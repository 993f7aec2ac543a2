"""What the simulation shows: a table, and a sentence for each thing that can be added."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from clotho_dev.simulation.inputs import Inputs
from clotho_dev.simulation.model import Outcome, Schedule

ENOUGH: Final = 0.95  # of the best: less is worth a change
_HEADER: Final = (
    f"{'GPUS':>5} {'RANKS':>6} {'REPLICAS':>9}  {'SCHEDULE':<13} {'STEP s':>7} {'TOK/S/GPU':>10} {'GOODPUT':>8}"
    f" {'DATA':>5} {'LEASE':>6} {'REDUCE':>7} {'STALE':>9} {'BUSIEST':>8}"
)


class Study(Struct, frozen=True, kw_only=True):
    """Outcomes of a number of GPUs, and of one GPU with each schedule."""

    alone: dict[Schedule, Outcome]
    outcomes: Sequence[Outcome]  # all shapes of all numbers of GPUs
    fewer_environments: Sequence[Outcome]  # asynchronous, from few to many groups in flight, one number of GPUs

    def goodput(self, outcome: Outcome) -> float:
        return outcome.tokens_per_gpu_second / self.alone[outcome.shape.schedule].tokens_per_gpu_second


def table(study: Study) -> str:
    lines = [_HEADER]
    for each in (*study.alone.values(), *study.outcomes):
        shape = each.shape
        stale = f"{each.staleness:.1f} / {each.most_stale}"
        lines.append(
            f"{shape.gpus:>5} {shape.ranks:>6} {shape.replicas:>9}  {shape.schedule:<13} {each.seconds_per_step:>7.2f}"
            f" {each.tokens_per_gpu_second:>10,.0f} {study.goodput(each):>8.2f} {each.waiting_share:>5.0%}"
            f" {each.lease_share:>6.0%} {each.all_reduce_share:>7.0%} {stale:>9} {each.busiest:>8.2f}"
        )
    return "\n".join(lines)


def legend(inputs: Inputs) -> str:
    work, mean = inputs.work, inputs.work.mean_answer
    answers = "answers of equal length" if mean is None else f"ragged answers, {mean:.0f} on average"
    return (
        f"Simulated. A batch has {work.groups_per_gpu} groups of {work.group_size} for each GPU; {answers}, at most"
        f" {work.longest_answer} tokens.\n"
        "GOODPUT: trained tokens for each GPU second, against one GPU with the same schedule. DATA, LEASE, REDUCE:\n"
        "share of the time that the ranks wait for data, for the rows of the batch, and for the all-reduce.\n"
        "STALE: steps behind, mean / most. BUSIEST: rank over mean, of tokens generated or trained."
    )


def advice(study: Study) -> list[str]:
    return [_environments(study), _ranks(study), *_replicas(study)]


def _environments(study: Study) -> str:
    outcomes = study.fewer_environments
    best = max(each.tokens_per_second for each in outcomes)
    enough = next(each for each in outcomes if each.tokens_per_second >= ENOUGH * best)
    gpus = enough.shape.gpus
    in_flight = (enough.shape.groups_in_flight or 0) / gpus
    return (
        f"Environments: add pods while fewer than {in_flight:g} groups are in flight for each GPU"
        f" ({enough.pods} pods for {gpus} GPUs, {enough.staleness:.1f} steps stale);"
        f" more bring less than {1 - ENOUGH:.0%}."
    )


def _ranks(study: Study) -> str:
    alone = [each for each in study.outcomes if not each.shape.replicas and each.shape.schedule == "asynchronous"]
    good = [each for each in alone if study.goodput(each) >= 0.9]
    poor = [each for each in alone if study.goodput(each) < 0.9]
    parts = []
    if good:
        most = max(good, key=lambda each: each.shape.gpus)
        parts.append(f"add ranks up to {most.shape.gpus} GPUs: each is worth {study.goodput(most):.2f} of the first")
    if poor:
        least = min(poor, key=lambda each: each.shape.gpus)
        parts.append(f"at {least.shape.gpus} it is {study.goodput(least):.2f}, because of {_limit(least)}")
    return f"Ranks: {'; '.join(parts)}."


def _limit(outcome: Outcome) -> str:
    shares = {
        "rank 0, which decodes the batch for all": outcome.lease_share,
        "the all-reduce": outcome.all_reduce_share,
        "waiting for data": outcome.waiting_share,
    }
    name = max(shares, key=lambda each: shares[each])
    return f"{name} ({shares[name]:.0%} of the time)"


def _replicas(study: Study) -> list[str]:
    found = []
    for gpus in sorted({each.shape.gpus for each in study.outcomes}):
        same = [each for each in study.outcomes if each.shape.gpus == gpus and each.shape.schedule == "asynchronous"]
        ranks_only = next(each for each in same if not each.shape.replicas)
        best = max(same, key=lambda each: each.tokens_per_second)
        gain = best.tokens_per_second / ranks_only.tokens_per_second - 1
        if gain > 1 - ENOUGH:
            advice = f"make {best.shape.replicas} of {gpus} GPUs replicas: {gain:+.0%} against ranks alone"
        else:
            advice = f"none at {gpus} GPUs: ranks generate, too, and replicas bring {gain:+.0%} at most"
        found.append(f"Inference replicas: {advice}.")
    return found
