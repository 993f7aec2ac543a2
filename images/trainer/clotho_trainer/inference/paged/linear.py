"""Linear layers with a common input as one product over the live weights, the base's and the adapters' at once."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import functional

from clotho_trainer.model import nf4
from clotho_trainer.model.fp8 import FP8, LARGEST, LEAST, Fp8Linear
from clotho_trainer.model.lora import plain_adapter

_ALIGNMENT = 64  # adapters are padded to as many rows, so that the products stay aligned
_TILE = (128, 64)  # of a product, for a multiprocessor
_MOST_PARTS = 4
_LEAST_FACTORS = 16  # that the matrix unit adds up at once
_REST = 16.0  # the rounding error of 8 bits is at most so much smaller than what was rounded


class Weighed(NamedTuple):
    """Rows times the weights of a norm. What else would normalise them is the same for all columns of a row, so that it
    is left to the end of the product, and each stretch of columns could be written without waiting for the others."""

    values: torch.Tensor
    squares: torch.Tensor  # of the rows without the weights, added up: [row, stretch]


class Up(NamedTuple):
    """The scaled B of the adapters of some modules. Of its columns, module i needs `ranks` from i * `step` on, and as
    many in each further copy of the adapters."""

    matrix: torch.Tensor
    ranks: int
    step: int
    copies: int


class Rows(NamedTuple):
    """The result of a product that is still to be completed, which is left to the operation that reads it anyway."""

    values: torch.Tensor  # [row, column], or [part, row, column] that are still to be added up
    scale: torch.Tensor | None = None  # what each row is still to be multiplied with
    up: Up | None = None  # what x A', in the last columns, is still to be multiplied with before it is added

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.values.shape[-1] if self.up is None else len(self.up.matrix)

    @property
    def parts(self) -> int:
        return 1 if self.values.dim() == 2 else len(self.values)

    def with_adapters(self) -> "Rows":
        """Added in place, after the parts were added up."""
        if self.parts > 1:
            kind = torch.float32 if self.up is None else self.up.matrix.dtype
            return self._replace(values=self.values.sum(0).to(kind)).with_adapters()
        if self.up is None:
            return self
        result = self.values[:, : self.width]
        result.addmm_(self.values[:, self.width :], self.up.matrix.t())
        return Rows(result, self.scale)

    @property
    def scaled(self) -> torch.Tensor:
        if self.scale is None:
            return self.values
        return (self.values.float() * self.scale).to(self.values.dtype)


Addition = Rows | Weighed | None
"""To the residual: still to be added; or it was added, and the norm after it is begun, or is not."""


class Streamed(NamedTuple):
    """What kernels read that compute a whole layer at once: x W' times the scale, and x A' times the scale times B'."""

    store: torch.Tensor  # W, and A below it
    up: torch.Tensor  # the scaled B
    scale: torch.Tensor | None


class BothWays(NamedTuple):
    """The base as training multiplies with it."""

    weight: torch.Tensor
    turned: torch.Tensor  # for the backward pass
    scale: torch.Tensor


@dataclass(frozen=True)
class Adapter:
    down: torch.Tensor
    up: torch.Tensor
    scaling: float
    outputs: slice
    ranks: slice


class _Copy(NamedTuple):
    """Where the matrices have A, numbers of 8 bits as bytes, and the scaled B of each adapter."""

    downs: list[torch.Tensor]
    ups: list[torch.Tensor]


class FusedLinear:
    """y = x W' + b + (x A') B'. The store holds W, which is the model's own, and below it a copy of A: one product
    gives both. `_up` is the scaled B of all layers, block by block; it lies to the right of W, for training."""

    takes_fp8 = False
    copies_of_adapters = 1

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype) -> None:
        self.dtype = dtype  # of what comes in and of what comes out
        self._bases = [getattr(module, "base_layer", module) for module in modules]
        self.width = sum(base.out_features for base in self._bases)
        self.adapters = _adapters(modules)
        self.has_all_adapters = len(self.adapters) == len(modules)
        self.rank = -(-sum(len(adapter.down) for adapter in self.adapters) // _ALIGNMENT) * _ALIGNMENT
        first, ranks = self._bases[0], self.rank * self.copies_of_adapters
        self.whole: torch.Tensor | None = None  # [[W, scaled B], [A, 0]], where all have one precision
        self._store, self._up = self._make_store(ranks, dtype)
        self._bias = first.weight.new_zeros(self.width + ranks, dtype=dtype) if first.bias is not None else None
        if self._bias is not None:
            for base, outputs in self._outputs():
                _become_view(base.bias, self._bias[outputs])

    @property
    def streamed(self) -> Streamed | None:
        """None where W is not in one piece."""
        return Streamed(self._store, self._up, None)

    @property
    def bias(self) -> torch.Tensor | None:
        return None if self._bias is None else self._bias[: self.width]

    @staticmethod
    def refresh(linears: "Sequence[FusedLinear]") -> None:
        """Take over what training did to the adapters; the base weights are shared anyway."""
        copies = [copy for linear in linears for copy in linear._copies]
        copy_adapters([each for linear in linears for each in linear.adapters], _downs(copies), _ups(copies))

    @cached_property
    def _copies(self) -> list[_Copy]:
        return [self._copy(self.rank * index) for index in range(self.copies_of_adapters)]

    def _copy(self, first: int) -> _Copy:
        ranks = [slice(first + each.ranks.start, first + each.ranks.stop) for each in self.adapters]
        below = self._store[len(self._store) - self.rank * self.copies_of_adapters :]
        outputs = [each.outputs for each in self.adapters]
        places = zip(outputs, ranks, strict=True)
        return _Copy([_plain(below[rows]) for rows in ranks], [self._up[place] for place in places])

    def __call__(self, x: Rows) -> Rows:
        rows, inputs = x.values.shape
        if self._parts == 1 or rows > _TILE[0]:
            return Rows(functional.linear(x.values, self._store, self._bias), up=self._completion)
        left = x.values.view(rows, self._parts, inputs // self._parts).transpose(0, 1)
        right = self._store.view(-1, self._parts, inputs // self._parts).permute(1, 2, 0)
        return Rows(torch.bmm(left, right, out_dtype=torch.float32), up=self._completion)

    @cached_property
    def _parts(self) -> int:
        """Of a long sum for a few rows: too few tiles for the multiprocessors otherwise. cuBLAS would split it as well,
        but add up in a kernel of its own."""
        outputs, inputs = self._store.shape
        is_long = inputs >= 2 * self.width
        if not is_long or not self._store.is_cuda or self._store.dtype == torch.float32 or self._bias is not None:
            return 1
        multiprocessors = torch.cuda.get_device_properties(self._store.device).multi_processor_count
        parts = min(multiprocessors // -(-outputs // _TILE[1]), _MOST_PARTS)
        return parts if parts > 1 and not inputs % (parts * _ALIGNMENT) else 1

    @cached_property
    def ranks_of_a_module(self) -> tuple[int, int]:
        """How many, and how many there are from one module's to the next one's: all and none where they differ."""
        ranks = {len(adapter.down) for adapter in self.adapters}
        is_regular = self.has_all_adapters and len(ranks) == 1 and not min(ranks) % _LEAST_FACTORS
        return (min(ranks), min(ranks)) if is_regular else (self.rank, 0)

    @cached_property
    def _completion(self) -> Up | None:
        return Up(self._up, *self.ranks_of_a_module, self.copies_of_adapters) if self.rank else None

    def _make_store(self, ranks: int, _dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self._bases[0].weight
        inputs = weight.shape[1]
        self.whole = weight.new_zeros(self.width + ranks, inputs + ranks)
        self._take_in(self.whole)
        return self.whole[:, :inputs], self.whole[: self.width, inputs:]

    def _take_in(self, store: torch.Tensor) -> None:
        for base, outputs in self._outputs():
            _become_view(base.weight, store[outputs, : base.in_features])

    def _outputs(self) -> Iterator[tuple[Any, slice]]:
        row = 0
        for base in self._bases:
            yield base, slice(row, row + base.out_features)
            row += base.out_features


class FusedFp8Linear(FusedLinear):
    """The same over a base in 8 bits. A is there twice, rounded and what rounding left over: together they are as exact
    as in 16 bits. The scale of a row is not applied here: the next operation applies it while it reads the result."""

    takes_fp8 = True
    copies_of_adapters = 2

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype) -> None:
        super().__init__(modules, dtype)
        self._scale: torch.Tensor = getattr(modules[0], "base_layer", modules[0]).scale
        self._one = torch.ones_like(self._scale)

    @property
    def streamed(self) -> Streamed:
        return Streamed(self._store, self._up, self._scale)

    def both_ways(self) -> BothWays:
        """What the modules have for their backward passes becomes views of one matrix."""
        turned: torch.Tensor = self._bases[0].turned
        if len(self._bases) > 1:
            turned = torch.cat([base.turned for base in self._bases], 1)
            for base, outputs in self._outputs():
                base.turned = turned[:, outputs]
        return BothWays(self._store[: self.width], turned, self._scale)

    def _make_store(self, ranks: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self._bases[0].weight
        store = weight.new_zeros(self.width + ranks, weight.shape[1])
        self._take_in(store)
        return store, weight.new_zeros(self.width, ranks, dtype=dtype)

    @staticmethod
    def refresh(linears: "Sequence[FusedFp8Linear]") -> None:  # type: ignore[override]
        adapters = [adapter for linear in linears for adapter in linear.adapters]
        coarse, rest = zip(*(linear._copies for linear in linears), strict=True)
        trained = [adapter.down for adapter in adapters]
        whole = _flatten_dense_tensors(trained).float()  # type: ignore[no-untyped-call]
        downs = _unflatten_dense_tensors(whole, trained)  # type: ignore[no-untyped-call]
        factors = torch.stack(torch._foreach_norm(downs, math.inf)).clamp(min=LEAST) / LARGEST
        sizes = torch.tensor([down.numel() for down in downs], device=factors.device)
        exact = whole / factors.repeat_interleave(sizes, output_size=len(whole))
        rounded = exact.to(FP8)
        torch._foreach_copy_(_downs(coarse), _parts(rounded, downs))
        rounded = ((exact - rounded.float()) * _REST).to(FP8)
        torch._foreach_copy_(_downs(rest), _parts(rounded, downs))
        scalings = torch.tensor([adapter.scaling for adapter in adapters], device=factors.device)
        scales = torch.stack([linear._scale for linear in linears for _ in linear.adapters])
        ups = torch._foreach_mul([adapter.up for adapter in adapters], (factors * scalings / scales).unbind())
        torch._foreach_copy_(_ups(coarse), ups)
        torch._foreach_div_(ups, _REST)
        torch._foreach_copy_(_ups(rest), ups)

    def __call__(self, x: Rows) -> Rows:
        y = Rows(self._product(x.values), x.scale, self._completion)
        return y if self.bias is None else Rows(y.with_adapters().scaled + self.bias)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_cuda:
            return functional.linear(x.float(), self._store.float() * self._scale).to(self._up.dtype)
        return torch._scaled_mm(
            x,
            self._store.t(),
            scale_a=self._one,
            scale_b=self._scale,
            out_dtype=self._up.dtype,
            use_fast_accum=True,
        )


class FusedPackedLinear(FusedLinear):
    """The same over a base in 4 bits, unpacked anew each time: the store holds A only."""

    streamed = None

    def __call__(self, x: Rows) -> Rows:
        unpacked = self._store.new_empty(self.width + len(self._store), self._store.shape[1])
        for base, outputs in self._outputs():
            nf4.unpack(base.packed, base.block, unpacked[outputs])
        unpacked[self.width :] = self._store
        return Rows(functional.linear(x.values, unpacked, self._bias), up=self._completion)

    def _make_store(self, ranks: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        first = self._bases[0]
        shapes = (ranks, first.in_features), (self.width, ranks)
        store, up = (first.weight.new_zeros(shape, dtype=dtype) for shape in shapes)
        return store, up


def fused(modules: Sequence[Any], dtype: torch.dtype) -> FusedLinear:
    base = getattr(modules[0], "base_layer", modules[0])
    if isinstance(base, nf4.Nf4Linear):
        return FusedPackedLinear(modules, dtype)
    return (FusedFp8Linear if isinstance(base, Fp8Linear) else FusedLinear)(modules, dtype)


def _adapters(modules: Sequence[Any]) -> list[Adapter]:
    adapters, output, rank = [], 0, 0
    for module in modules:
        outputs = slice(output, output + module.out_features)
        if name := plain_adapter(module):
            down, up = module.lora_A[name].weight, module.lora_B[name].weight
            ranks = slice(rank, rank + len(down))
            adapters.append(Adapter(down, up, module.scaling[name], outputs, ranks))
            rank = ranks.stop
        output = outputs.stop
    return adapters


def refresh(linears: Sequence[FusedLinear]) -> None:
    for kind in {type(linear) for linear in linears}:
        if adapted := [linear for linear in linears if type(linear) is kind and linear.adapters]:
            kind.refresh(adapted)


def copy_adapters(adapters: Sequence[Adapter], downs: list[torch.Tensor], ups: list[torch.Tensor]) -> None:
    """A as it is, and the scaled B. All at once: between two calls another thread may take the interpreter."""
    torch._foreach_copy_(downs, [adapter.down for adapter in adapters])
    scaled = torch._foreach_mul([adapter.up for adapter in adapters], [adapter.scaling for adapter in adapters])
    torch._foreach_copy_(ups, scaled)


def _plain(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.uint8) if values.dtype == FP8 else values


def _parts(whole: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Its bytes, in those shapes."""
    return list(_unflatten_dense_tensors(_plain(whole), like))  # type: ignore[no-untyped-call]


def _downs(copies: Sequence[_Copy]) -> list[torch.Tensor]:
    return [down for copy in copies for down in copy.downs]


def _ups(copies: Sequence[_Copy]) -> list[torch.Tensor]:
    return [up for copy in copies for up in copy.ups]


def _become_view(parameter: torch.Tensor, view: torch.Tensor) -> None:
    view.copy_(parameter.data)
    parameter.data = view
