"""The ranks that train one policy: each takes its share of a batch, and gradients and figures are summed over all.

Nothing that is received is unpickled: rows, figures and tensors travel as bytes of a known form.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec import Struct
from torch._C._distributed_c10d import TCPStore
from torch.distributed.tensor import DTensor

from clotho_trainer.failures import TrainerError
from clotho_trainer.training.batch import Batch, Row
from clotho_trainer.training.local.dealing import deal

Collectives = Literal["nccl", "gloo"]
Task = Literal["step", "gather"]  # what rank 0 does next, and the others with it

_BUCKET = 2**26  # elements summed at once: 256 MiB
_NAMING_SECONDS = 10.0  # for the rank that is missing to be found out, when a collective fails


class Report(Struct, frozen=True):
    """What a rank's share of a step gave. Figures that are not numbers travel as null."""

    loss: float | None
    tokens: int  # that were trained; means are weighted with them
    means: dict[str, float | None] = {}
    sums: dict[str, float | None] = {}
    peaks: dict[str, float | None] = {}


class _StepRow(Struct, frozen=True, array_like=True):
    prompt: bytes
    completion: bytes
    trained: bytes
    counted: bytes
    advantages: bytes
    logprobs: bytes


class _Step(Struct, frozen=True):
    learning_rate: float
    rows: list[_StepRow]


class Alone:
    """A team of one rank: nothing is sent."""

    rank = 0
    size = 1

    def lead(self, batch: Batch, learning_rate: float) -> None:
        """Rank 0 gives every rank the batch of its next step."""

    def follow(self) -> tuple[Batch, float]:
        raise RuntimeError("a rank that is alone follows none")

    def shares(self, rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
        """By rank, and the same on every rank."""
        return [rows]

    def announce(self, task: Task) -> None:
        """Ranks that wait for rank 0 are in no collective, so none can time out."""

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None: ...

    def merged(self, report: Report) -> Report:
        return report

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Every rank's tensors become those of rank 0."""

    def broadcast_bytes(self, content: bytes) -> bytes:
        return content


class Team(Alone):
    def __init__(self, rank: int, size: int, wire: torch.device, announce: Callable[[Task], None]) -> None:
        self.rank = rank
        self.size = size
        self._wire = wire  # where the tensors of a collective have to be
        self._announce = announce

    def announce(self, task: Task) -> None:
        self._announce(task)

    def lead(self, batch: Batch, learning_rate: float) -> None:
        self.announce("step")
        self.broadcast_bytes(msgspec.msgpack.encode(_Step(learning_rate, [_packed(row) for row in batch.rows])))

    def follow(self) -> tuple[Batch, float]:
        step = msgspec.msgpack.decode(self.broadcast_bytes(b""), type=_Step)
        return Batch(tuple(_unpacked(row) for row in step.rows), {}), step.learning_rate

    def shares(self, rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
        return deal(rows, self.size)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """In single precision, whatever the parameters have. A rank without rows adds zeros. Gradients of sharded
        parameters are summed already, in the backward pass."""
        for bucket in _buckets([each for each in parameters if not isinstance(each, DTensor)]):
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            flat = torch.cat([gradient.float().flatten() for gradient in gradients]).to(self._wire)
            with contact():
                dist.all_reduce(flat)
            summed = torch.split(flat, [each.numel() for each in bucket])
            for each, values in zip(bucket, summed, strict=True):
                each.grad = values.view_as(each).to(each.device, each.dtype)

    def merged(self, report: Report) -> Report:
        return merge([msgspec.json.decode(each, type=Report) for each in self._gather(msgspec.json.encode(report))])

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            sent = tensor.detach().to(self._wire).contiguous()
            with contact():
                dist.broadcast(sent, 0)
            with torch.no_grad():
                tensor.copy_(sent)

    def broadcast_bytes(self, content: bytes) -> bytes:
        length = torch.tensor([len(content)])
        self.broadcast([length])
        body = _tensor(content) if self.rank == 0 else torch.zeros(int(length), dtype=torch.uint8)
        self.broadcast([body])
        return body.numpy().tobytes()

    def _gather(self, content: bytes) -> list[bytes]:
        """What each rank gave, by rank."""
        lengths = self._gathered(torch.tensor([len(content)]))
        longest = int(max(lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = _tensor(content)
        bodies = self._gathered(padded)
        return [body[: int(length)].numpy().tobytes() for body, length in zip(bodies, lengths, strict=True)]

    def _gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        sent = tensor.to(self._wire)
        received = [torch.zeros_like(sent) for _ in range(self.size)]
        with contact():
            dist.all_gather(received, sent)
        return [each.cpu() for each in received]


def open_store(port: int = 0) -> TCPStore:
    """Where the ranks find each other; rank 0's. Any free port by default."""
    return TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)  # noqa: S104 - for the other ranks


def reach_store(host: str, port: int) -> TCPStore:
    with contact():
        return TCPStore(host, port, is_master=False)


def connect(
    rank: int,
    size: int,
    store: TCPStore,
    *,
    timeout_seconds: float,
    collectives: Collectives | None = None,
    announce: Callable[[Task], None] = lambda _: None,
) -> Team:
    """NCCL where there are GPUs, else gloo; gloo takes two ranks on one GPU, which NCCL refuses."""
    chosen = collectives or ("nccl" if torch.cuda.is_available() else "gloo")
    with contact():
        dist.init_process_group(
            chosen, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_seconds)
        )
    return Team(rank, size, torch.device("cuda" if chosen == "nccl" else "cpu"), announce)


def merge(reports: Sequence[Report]) -> Report:
    """Losses and sums add up, means are weighted with the trained tokens, and of peaks the highest counts."""
    return Report(
        loss=math.fsum(math.nan if each.loss is None else each.loss for each in reports),
        tokens=sum(each.tokens for each in reports),
        means={name: _mean(name, reports) for name in _names(each.means for each in reports)},
        sums={name: sum(each.sums.get(name) or 0.0 for each in reports) for name in _names(r.sums for r in reports)},
        peaks={name: max(each.peaks.get(name) or 0.0 for each in reports) for name in _names(r.peaks for r in reports)},
    )


def _mean(name: str, reports: Sequence[Report]) -> float:
    known = [(value, each.tokens) for each in reports if (value := each.means.get(name)) is not None]
    weight = sum(tokens for _, tokens in known)
    return math.fsum(value * tokens for value, tokens in known) / weight if weight else math.nan


def _names(figures: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for each in figures for name in each))


@contextmanager
def contact(*, computes: bool = False) -> Iterator[None]:
    """A collective fails as soon as a rank is gone. Which one it was is found out elsewhere and ends this process:
    only a failure without a missing rank outlasts the wait. `computes`: other things may fail as well."""
    try:
        yield
    except RuntimeError as error:
        if computes and not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        time.sleep(_NAMING_SECONDS)
        problem = str(error).strip().splitlines()[0]
        raise TrainerError("DependencyUnavailable", f"the ranks lost contact: {problem}") from error


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    bucket: list[torch.nn.Parameter] = []
    elements = 0
    for each in parameters:
        if bucket and elements + each.numel() > _BUCKET:
            yield bucket
            bucket, elements = [], 0
        bucket.append(each)
        elements += each.numel()
    if bucket:
        yield bucket


def _tensor(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _packed(row: Row) -> _StepRow:
    return _StepRow(
        row.prompt.tobytes(),
        row.completion.tobytes(),
        row.trained.tobytes(),
        row.counted.tobytes(),
        row.advantages.tobytes(),
        row.logprobs.tobytes(),
    )


def _unpacked(row: _StepRow) -> Row:
    return Row(
        np.frombuffer(row.prompt, np.int64).copy(),
        np.frombuffer(row.completion, np.int64).copy(),
        np.frombuffer(row.trained, np.bool_).copy(),
        np.frombuffer(row.counted, np.bool_).copy(),
        np.frombuffer(row.advantages, np.float32).copy(),
        np.frombuffer(row.logprobs, np.float32).copy(),
    )
