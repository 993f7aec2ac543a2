"""A decoder's kernels are compiled before any of them is launched. Triton compiles them for a GPU that is not there, so
that to launch one would be an error. A program of its own, as the driver is that of the process."""

from typing import Any

import pytest
import torch
import triton

from clotho_trainer.inference.paged.cache import CacheShape
from clotho_trainer.inference.paged.decoder import Decoder
from clotho_trainer.inference.paged.kernels import TritonOperations
from clotho_trainer.inference.paged.weights import PolicyWeights
from integration.trainer.compiled_kernels import HOPPER
from integration.trainer.fast_policies import CONTEXT, policy

STEPPING = {"_enter", "_add_and_norm", "_rotate_and_store", "_attend", "_gated", "_measure", "_draw", "_advance"}


class AbsentGpu:
    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return HOPPER


def main() -> None:
    triton.runtime.driver.set_active(AbsentGpu())  # type: ignore[no-untyped-call]
    compiled: list[str] = []
    triton.knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: compiled.append(fn.name.rpartition(".")[2])
    weights = PolicyWeights(policy("qwen3").model, CONTEXT)
    weights.refresh()
    decoder = Decoder(weights, CacheShape(16, 16), max_rows=16, seed=0)
    decoder._operations = TritonOperations(weights)
    before = [tensor.clone() for tensor in vars(decoder._rows).values()]
    works = [decoder._work_for(size) for size in (16, 4)]
    decoder._compile(works)
    assert set(compiled) >= STEPPING, set(compiled)
    count = len(compiled)
    decoder._compile(works)
    assert len(compiled) == count, "all of them are there already"
    assert all(map(torch.equal, before, vars(decoder._rows).values()))
    with pytest.raises(AttributeError, match="launcher"):
        decoder._steps(works[0], 1)


if __name__ == "__main__":
    main()
