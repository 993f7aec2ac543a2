"""The trained parameters on their way from the trainer to inference replicas: safetensors in a file in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.memory_file import MemoryFile, sized

Tensors = Mapping[str, torch.Tensor]

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_ALIGNMENT = 8  # bytes, of the largest of these


@dataclass(frozen=True)
class TrainedParameters:
    """Adapters, or all parameters where those are trained; whole tensors, by their names in the model. They are those
    of the file, and change with it."""

    version: int
    tensors: Tensors
    file: Path | None = None


def trained_names(model: Any) -> frozenset[str]:
    return frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def write_trained(live: LiveWeights, spare: MemoryFile | None = None) -> tuple[int, MemoryFile]:
    """The version, and a file with it: `spare`, where that has the right size. Each tensor is copied once, from where
    it is trained to its place in the file."""
    with live.training():
        tensors = live.whole
        if tensors is None:
            tensors = {name: each.detach() for name, each in live.model.named_parameters() if each.requires_grad}
        tensors = dict(sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])))  # all are aligned
        header = _header(tensors)
        size = len(header) + sum(tensor.nbytes for tensor in tensors.values())
        is_on_gpu = any(tensor.is_cuda for tensor in tensors.values())
        file = sized(spare, size, is_pinned=is_on_gpu)
        file.view[: len(header)] = header
        place = len(header)
        for tensor in tensors.values():
            there = file.tensor[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            there.copy_(tensor, non_blocking=True)
            place += tensor.nbytes
        if is_on_gpu:
            torch.cuda.current_stream(live.device).synchronize()
        return live.version, file


def _header(tensors: Tensors) -> bytes:
    """How a safetensors file begins: the header's length, then where each tensor lies after it."""
    entries, place = {}, 0
    for name, tensor in tensors.items():
        offsets = [place, place + tensor.nbytes]
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        place += tensor.nbytes
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def read_trained(file: Path) -> Tensors:
    """Without a copy: they change with the file. Raises ValueError for what is not safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
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
            live.whole, live.whole_file = trained.tensors, trained.file
        live.version, live.lineage = trained.version, lineage
