"""The optimiser's state on its way from rank 0 to the other ranks, each of which keeps all of it or its part."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct

from clotho_trainer.training.local.sharding import part_of
from clotho_trainer.training.local.team import Alone


class Moment(Struct, frozen=True):
    """One tensor of the state."""

    parameter: int
    name: str
    dtype: str
    shape: list[int]
    device: str


def moments(optimizer: torch.optim.Optimizer) -> list[Moment]:
    return [
        Moment(index, name, str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type)
        for index, parameter in enumerate(parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
    ]


def receive(
    team: Alone, moments: Sequence[Moment], before: torch.optim.Optimizer, after: torch.optim.Optimizer
) -> None:
    """`moments` are those of rank 0, which has them in `before`; then every rank has them in `after`."""
    old, new = parameters(before), parameters(after)
    state: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for each in moments:
        if team.rank == 0:
            whole = before.state[old[each.parameter]][each.name]
        else:
            whole = torch.zeros(each.shape, dtype=getattr(torch, each.dtype), device=each.device)
        team.broadcast([whole])
        state[each.parameter][each.name] = part_of(whole, new[each.parameter])
    after.load_state_dict({"state": dict(state), "param_groups": after.state_dict()["param_groups"]})


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """What is trained."""
    return [each for group in optimizer.param_groups for each in group["params"]]
