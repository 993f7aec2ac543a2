"""One decode step on the device. With Triton it is a CUDA graph for each size of batch: the host only replays it."""

import os
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import functional

from clotho_trainer.inference.core.block_manager import NULL_BLOCK
from clotho_trainer.inference.core.sequences import Sequence
from clotho_trainer.inference.paged import sharing
from clotho_trainer.inference.paged.cache import Cache, CacheShape, LayerCache
from clotho_trainer.inference.paged.device_rows import DeviceRows
from clotho_trainer.inference.paged.linear import Addition, Rows
from clotho_trainer.inference.paged.reference_ops import PlainOperations
from clotho_trainer.inference.paged.sharing import SharedPrompts
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights

STEPS = 4  # at most, before the host checks which sequences are finished
_LONG_PROMPT = 256  # tokens: too many for the kernels for few rows
_ROWS_OF_GRAPHS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)

Attend = Callable[[torch.Tensor, LayerCache], torch.Tensor]


class Operations(Protocol):
    def enter(self, rows: DeviceRows, size: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]: ...

    def add_and_norm(
        self, residual: torch.Tensor, addition: Addition, weight: torch.Tensor, *, rounds: bool
    ) -> Rows: ...

    def project_heads(
        self,
        residual: torch.Tensor,
        addition: Addition,
        layer: Layer,
        positions: torch.Tensor,
        slots: torch.Tensor,
        cache: LayerCache,
    ) -> torch.Tensor: ...

    def project_output(self, residual: torch.Tensor, mixed: torch.Tensor, layer: Layer) -> Addition: ...

    def project_gated(self, residual: torch.Tensor, addition: Addition, layer: Layer) -> Rows: ...

    def project_down(
        self, residual: torch.Tensor, gated: Rows, layer: Layer, following_norm: torch.Tensor | None
    ) -> Addition: ...

    def gather(self, cache: LayerCache, tables: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]: ...

    def attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        positions: torch.Tensor,
        tables: torch.Tensor,
        shared: SharedPrompts | None,
    ) -> torch.Tensor: ...

    def sample(
        self, logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def advance(self, rows: DeviceRows, tokens: torch.Tensor, logprobs: torch.Tensor) -> None: ...


@dataclass(frozen=True, slots=True)
class Flight:
    """Steps that were launched: the host is free until it needs what they sample."""

    rows: int
    steps: int
    tokens: torch.Tensor  # of all steps and rows, in the host's memory once they have landed
    logprobs: torch.Tensor
    nears: Any  # CUDA events; None on a CPU, where everything is computed at once
    lands: Any

    def wait_for_last_step(self) -> None:
        """It is the time to launch more: later the device would idle, earlier more would be decided unseen."""
        if self.nears is not None:
            self.nears.synchronize()

    def collect(self) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens and log-probabilities of all steps, for each row. At most one later flight may have been launched."""
        if self.lands is not None:
            self.lands.synchronize()
        return self.tokens[:, : self.rows].t().tolist(), self.logprobs[:, : self.rows].t().tolist()


class _Work(NamedTuple):
    """What a step is made for."""

    size: int  # of the batch
    shares: bool  # whether it looks for what rows share: in vain that takes 1% of a step in 8 bits


class _Graphs(NamedTuple):
    """To be replayed. Between two of them the device idles a little, so steps that are launched together are one."""

    forward: Callable[[], None]
    logits: torch.Tensor  # where `forward` leaves them
    step: Callable[[], None]  # with sampling
    all_but_last: Callable[[], None]  # of as many steps as are launched at most


class Decoder:
    def __init__(self, weights: PolicyWeights, shape: CacheShape, *, max_rows: int, seed: int) -> None:
        self._weights = weights
        self._block_size = shape.block_size
        self._operations, self._uses_graphs = _operations(weights, seed)
        device = weights.device
        self._cache = Cache(weights, shape)
        columns = min(-(-len(weights.cos) // shape.block_size), shape.blocks)
        self._rows = DeviceRows(max_rows, columns, STEPS, device)
        queries_a_row = weights.query_heads // weights.kv_heads
        self._shared = SharedPrompts(max_rows, queries_a_row, device, in_fp8=shape.in_fp8)
        drawn = self._rows.drawn, self._rows.logprobs
        self._landings = cycle(
            [
                tuple(torch.empty_like(x, device="cpu", pin_memory=x.is_cuda) for x in drawn)
                for _ in range(2)  # one is read while the next flight fills the other
            ]
        )
        self._always_looks = not shape.in_fp8  # for shared prompts, as short ones are worth it only there
        self._graphs: dict[_Work, _Graphs] = {}
        self._pool: Any = None  # of the graphs' memory
        self.sizes = [size for size in _ROWS_OF_GRAPHS if size < max_rows] + [max_rows]
        self._work = self._work_for(1)  # what is loaded

    def capture(self) -> None:
        """From the largest to the smallest, so that all graphs live in the memory of the first. In 8 bits those of
        steps that share a prompt are captured when such a prompt comes for the first time."""
        if self._uses_graphs:
            works = [self._work_for(size) for size in reversed(self.sizes)]
            self._compile(works)
            for work in works:
                self._capture(work)

    def _compile(self, works: Many[_Work]) -> None:
        """Of steps, the first and the last layer need all kernels that there are; and of reading a prompt."""
        from clotho_trainer.model.launching import compiling

        layers = self._weights.layers
        with compiling():
            for work in works:
                self._steps(work, 1, [layers[0], layers[-1]])
            self.prefill([[0] * min(_LONG_PROMPT, len(self._weights.cos))], [[]])

    def _capture(self, work: _Work) -> None:
        """The steps run once before: what they write goes to the block that has no owner."""
        self._rows.clear()
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._steps(work, 1)
        torch.cuda.current_stream().wait_stream(side)
        forward, logits = self._captured(partial(self._forward_step, work))
        step, _ = self._captured(partial(self._steps, work, 1))
        all_but_last, _ = self._captured(partial(self._steps, work, STEPS - 1))
        self._graphs[work] = _Graphs(forward, logits, step, all_but_last)

    def _captured(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        self._pool = self._pool or graph.pool()
        return graph.replay, result

    def load(self, rows: Many[Sequence]) -> None:
        """These rows from now on; the host holds all of their state, so nothing is moved about on the device."""
        read_only = [max(row.position, row.cached) for row in rows]
        self._shared.load([row.blocks for row in rows], read_only, self._block_size)
        self._work = self._work_for(len(rows))
        if self._uses_graphs and self._work not in self._graphs:
            self._capture(self._work)
        self._rows.load(rows, self._work.size)

    def load_tables(self, rows: Many[Sequence]) -> None:
        """Only the blocks of the rows have changed. It waits for nothing that was launched."""
        self._rows.load_tables(rows, self._work.size)

    def launch(self, rows: int, steps: int) -> Flight:
        """`steps` steps of the first `rows` rows, behind what was launched before."""
        graphs = self._graphs.get(self._work)
        step = graphs.step if graphs else partial(self._steps, self._work, 1)
        self._rows.taken.zero_()
        if graphs and steps == STEPS:
            graphs.all_but_last()
        else:
            for _ in range(steps - 1):
                step()
        nears = self._mark()
        step()
        tokens, logprobs = (landing[:steps] for landing in next(self._landings))
        tokens.copy_(self._rows.drawn[:steps], non_blocking=True)
        logprobs.copy_(self._rows.logprobs[:steps], non_blocking=True)
        return Flight(rows, steps, tokens, logprobs, nears, self._mark())

    def logits(self, rows: int) -> torch.Tensor:
        """Of one step; after sampling from them, call `load` with the new tokens."""
        graphs = self._graphs.get(self._work)
        if graphs is None:
            return self._forward_step(self._work)[:rows]
        graphs.forward()
        return graphs.logits[:rows]

    def prefill(self, prompts: Many[Many[int]], tables: Many[Many[int]]) -> torch.Tensor:
        """Cache the prompts in their blocks; the logits after each. Padding is on the right, where causal attention
        never reads: what it leaves in a block is overwritten before it is attended to."""
        w, count, longest = self._weights, len(prompts), max(map(len, prompts))
        columns = -(-longest // self._block_size)
        ids = torch.tensor([[*p, *[0] * (longest - len(p))] for p in prompts], device=w.device)
        blocks = torch.tensor([[*t, *[NULL_BLOCK] * columns][:columns] for t in tables], device=w.device)
        positions = torch.arange(longest, device=w.device).expand(count, -1)
        slots = blocks.gather(1, positions // self._block_size) * self._block_size + positions % self._block_size

        def attend(query: torch.Tensor, cache: LayerCache) -> torch.Tensor:
            result = functional.scaled_dot_product_attention(
                query.view(count, longest, w.query_heads, w.head_dim).transpose(1, 2),
                *self._operations.gather(cache, blocks, longest),
                is_causal=True,
                enable_gqa=w.query_heads != w.kv_heads,
            )
            return result.transpose(1, 2).reshape(count * longest, -1)

        residual = functional.embedding(ids.flatten(), w.embedding)
        hidden = self._forward(residual, positions.flatten(), slots.flatten(), attend)
        ends = torch.tensor([index * longest + len(p) - 1 for index, p in enumerate(prompts)], device=w.device)
        return functional.linear(hidden[ends], w.head)

    def copy_blocks(self, sources: Many[int], targets: Many[int]) -> None:
        self._cache.copy(sources, targets)

    def _mark(self) -> Any:
        """Waited for, it tells that all that was launched so far is done."""
        device = self._weights.device
        return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def _work_for(self, rows: int) -> _Work:
        size = next(size for size in self.sizes if size >= rows)
        looks = self._always_looks or self._shared.has_tiles
        return _Work(size, looks and size >= sharing.FEWEST_ROWS)

    def _steps(self, work: _Work, count: int, layers: Many[Layer] | None = None) -> None:
        do, rows, size = self._operations, self._rows, work.size
        for _ in range(count):
            inputs = rows.temperatures[:size], rows.seeds[:size], rows.positions[:size]
            do.advance(rows, *do.sample(self._forward_step(work, layers), *inputs))

    def _forward_step(self, work: _Work, layers: Many[Layer] | None = None) -> torch.Tensor:
        positions, tables = self._rows.positions[: work.size], self._rows.tables[: work.size]
        residual, slots = self._operations.enter(self._rows, work.size, self._block_size)
        shared = self._shared if work.shares else None

        def attend(query: torch.Tensor, cache: LayerCache) -> torch.Tensor:
            return self._operations.attend(query, cache, positions, tables, shared)

        return functional.linear(self._forward(residual, positions, slots, attend, layers), self._weights.head)

    def _forward(
        self,
        residual: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        attend: Attend,
        layers: Many[Layer] | None = None,
    ) -> torch.Tensor:
        """Through these layers, or through all of them."""
        do, layers = self._operations, layers or self._weights.layers
        addition: Addition = None
        for index, layer in enumerate(layers):
            cache = self._cache.layer(index)
            mixed = attend(do.project_heads(residual, addition, layer, positions, slots, cache), cache)
            addition = do.project_output(residual, mixed, layer)
            gated = do.project_gated(residual, addition, layer)
            following = layers[index + 1].attention_norm if index + 1 < len(layers) else None
            addition = do.project_down(residual, gated, layer, following)
        return do.add_and_norm(residual, addition, self._weights.final_norm, rounds=False).values


def _operations(weights: PolicyWeights, seed: int) -> tuple[Operations, bool]:
    """Triton's where it runs, and whether steps can be captured in graphs."""
    on_gpu = weights.device.type == "cuda"
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    has_kernels = weights.head_dim in (16, 32, 64, 128, 256)
    if has_kernels and (on_gpu or is_interpreted):
        from clotho_trainer.inference.paged.kernels import TritonOperations

        return TritonOperations(weights), on_gpu
    return PlainOperations(weights, seed), False
