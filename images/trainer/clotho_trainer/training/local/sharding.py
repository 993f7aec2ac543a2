"""A model that is spread over the ranks (FSDP2): each keeps its part of every parameter, of its gradient and of the
optimiser's state, and all of them gather a layer while they compute with it."""

from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from clotho_trainer.failures import TrainerError
from clotho_trainer.model.architecture import base_model
from clotho_trainer.training.local.logprob_head import completion_logprobs
from clotho_trainer.training.local.team import Alone, contact


def shard(model: Any, team: Alone, device: torch.device) -> None:
    """Rank 0 has the weights, the others have only their shapes. A rank holds one layer whole at a time, and what is
    outside the layers: never the model."""
    mesh = DeviceMesh(device.type, torch.arange(team.size))
    for part in (*_layers(model), model):
        _receive(part, team, device)
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    for module in model.modules():
        if isinstance(module, FSDPModule):  # losses are shares of the whole batch: their gradients add up
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    # Packed rows pass by the model's own forward, which gathers what is outside the layers.
    model.completion_logprobs = MethodType(completion_logprobs, model)
    register_fsdp_forward_method(model, "completion_logprobs")
    # The first pass sets FSDP up; it must not be one for the reference, whose adapters are off.
    with contact(computes=True), torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device))
    model.reshard()


def packed_logprobs(model: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor] = model.completion_logprobs(*arguments)
    return result


def part_of(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What this rank keeps of a tensor that belongs to the parameter; all of it, where that is not sharded."""
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    there = tensor.to(parameter.device)
    return distribute_tensor(there, parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All ranks must call it together."""
    if not isinstance(tensor, DTensor):
        return tensor
    with contact():
        return tensor.full_tensor()


def gather(tensors: Mapping[str, torch.Tensor], *, keeps: bool) -> dict[str, torch.Tensor]:
    """Whole copies in the host's memory, for a rank that keeps them. All ranks must call it together."""
    kept = {}
    for name, tensor in tensors.items():
        complete = whole(tensor.detach())
        if keeps:
            kept[name] = complete.to("cpu", copy=True).contiguous()
    return kept


def gather_state(optimizer: torch.optim.Optimizer, *, keeps: bool) -> dict[str, Any]:
    """As `optimizer.state_dict()` is where nothing is sharded. All ranks must call it together."""
    found = optimizer.state_dict()
    states = {index: gather(state, keeps=keeps) for index, state in found["state"].items()}
    return found | {"state": states}


def _layers(model: Any) -> list[nn.Module]:
    inner = base_model(model)
    kinds = frozenset(inner._no_split_modules or ())
    layers = [module for module in inner.modules() if type(module).__name__ in kinds]
    if not layers:
        raise TrainerError(
            "InvalidConfig",
            f"trainer.sharding fsdp cannot be used here: the architecture {inner.config.model_type} does not name its "
            "layers",
        )
    return layers


def _receive(part: nn.Module, team: Alone, device: torch.device) -> None:
    """Parameters that modules share stay shared."""
    there: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # with the old one, whose id must not be used again
    for tensors, name, old in _held(part):
        there.setdefault(id(old), (old, _moved(old, device)))
        tensors[name] = there[id(old)][1]
    team.broadcast(new.data for _, new in there.values())


def _held(part: nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    """Those that no layer has sharded yet."""
    for module in part.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and not isinstance(tensor, DTensor):
                    yield tensors, name, tensor


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    moved = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.detach().to(device)
    return nn.Parameter(moved, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
