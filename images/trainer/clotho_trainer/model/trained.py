"""The trained parameters on their way from the trainer to inference replicas: named tensors on the CPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from clotho_trainer.model.live import LiveWeights

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class TrainedParameters:
    """Adapters, or all parameters where those are trained; whole tensors, by their names in the model."""

    version: int
    tensors: Tensors


def trained_names(model: Any) -> frozenset[str]:
    return frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def copy_trained(live: LiveWeights) -> TrainedParameters:
    with live.training():
        if live.whole is not None:
            return TrainedParameters(live.version, live.whole)
        tensors = {
            name: parameter.detach().to("cpu", copy=True).contiguous()
            for name, parameter in live.model.named_parameters()
            if parameter.requires_grad
        }
        return TrainedParameters(live.version, tensors)


def encode(trained: TrainedParameters) -> bytes:
    from safetensors.torch import save

    return save(dict(trained.tensors))


def decode(body: bytes) -> Tensors:
    """Raises ValueError for what is not safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(body)
    except SafetensorError as error:
        raise ValueError(f"the parameters cannot be read: {error}") from error


def replace_trained(live: LiveWeights, names: frozenset[str], trained: TrainedParameters, lineage: int) -> None:
    """Between two decode steps. Raises ValueError for parameters of another model; the old ones stay then."""
    if difference := sorted(names ^ trained.tensors.keys()):
        raise ValueError(f"the trainer and this replica do not train the same parameters: {difference[0]}")
    with live.training(), torch.no_grad():
        parameters = dict(live.model.named_parameters())
        for name, tensor in trained.tensors.items():
            if parameters[name].shape != tensor.shape:
                raise ValueError(f"{name} has the shape {list(tensor.shape)}, not {list(parameters[name].shape)}")
        if live.whole is None:
            for name, tensor in trained.tensors.items():
                parameters[name].data.copy_(tensor)
        else:
            live.whole = trained.tensors
        live.version, live.lineage = trained.version, lineage
