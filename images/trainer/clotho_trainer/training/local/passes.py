"""How a step goes through the model: compiled or not, how many tokens a pass, and which layers recompute theirs."""

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clotho_trainer.model.architecture import base_model, recomputable_layers

log = logging.getLogger(__name__)

TOKENS = 17_408  # a pass, where the config leaves the micro-batch to us; half of it is 16 answers of 512, and a prompt
_SIZES = [TOKENS >> shift for shift in range(3)]
_RESERVE = 6 * 2**30  # for logits, gradients and what the allocator cannot use
_PROBE_TOKENS = 256
_FEWEST_MEASURED = 1_024  # tokens of a pass that shows what layers keep; of fewer, too much is overhead


@dataclass
class ActivationMemory:
    """How many layers recompute their activations in the backward pass, so that a pass fits into memory."""

    layers: int
    budget: float = math.inf  # bytes; 0: all layers recompute, whatever fits
    kept_bytes: float = 0.0  # for one token, by a layer that keeps its activations
    input_bytes: float = 0.0  # for one token, by a layer that recomputes them
    _measured: int = field(default=_FEWEST_MEASURED, init=False)  # tokens of the pass that the figures are from

    def recomputed_layers(self, tokens: int) -> int:
        """As few as possible of the first ones: their backward pass begins when the others have freed their memory. The
        gradients within a layer take about as much as it keeps."""
        if not self.budget:
            return self.layers
        missing = (self.layers + 1) * self.kept_bytes - self.budget / tokens
        if missing <= 0:
            return 0
        return min(math.ceil(missing / max(self.kept_bytes - self.input_bytes, 1)), self.layers)

    def best_pass(self) -> int:
        """The largest of those in which the fewest layers recompute: that costs more than a smaller pass."""
        return min(_SIZES, key=lambda tokens: (self.recomputed_layers(tokens), -tokens))

    def measure(self, tokens: int, recomputed: int, held: int) -> None:
        """`held` bytes were there after the forward pass: compiled layers keep less than those of the probe."""
        if held <= 0 or tokens < self._measured or recomputed > self.layers / 2:
            return
        self.kept_bytes = (held / tokens - recomputed * self.input_bytes) / (self.layers - recomputed)
        self._measured = tokens


def all_alike(model: Any, *, recompute: bool) -> ActivationMemory:
    return ActivationMemory(len(recomputable_layers(model)), budget=0.0 if recompute else math.inf)


def measured(model: Any, autocast: Callable[[], Any], free: int) -> ActivationMemory:
    """With a small forward pass, of which every layer keeps its activations."""
    decoder = base_model(model).get_decoder()
    ids = torch.zeros(1, _PROBE_TOKENS, dtype=torch.long, device=model.device)
    before = held_bytes()
    with autocast():
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
    layers = len(recomputable_layers(model))
    kept = (held_bytes() - before) / _PROBE_TOKENS / layers
    return ActivationMemory(layers, max(free - _RESERVE, 0), kept, hidden.shape[-1] * hidden.element_size())


def held_bytes() -> int:
    """By tensors on the GPU; the host knows without waiting for it."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def free_memory(promised_bytes: int, promised_share: float = 0.0) -> int:
    """What the allocator holds unused counts as free; what was promised does not, in bytes or as a share of the GPU."""
    free, total = torch.cuda.mem_get_info()
    promised = promised_bytes + promised_share * total
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() - promised)


def keep_compiled(folder: Path) -> None:
    """What is compiled is kept on the volume, so that a restart does not compile again."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(folder / "flash-attention"))
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # its default; Triton warns of a change to come if unset


def compile_layers(model: Any) -> None:
    """All layers share one compiled program for each kind of shape; the first shape is compiled on its own, the second
    for every length."""
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = 64  # passes with and without adapters, with and without gradients
    for layer in base_model(model).get_decoder().layers:
        layer.compile()
    log.info("the first steps compile the layers and take up to a minute longer, but not after a restart")
