"""The measured inputs, typed; the file beside this one names the source of each."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

RECORDED: Final = Path(__file__).with_name("inputs.toml")
Positive = Annotated[float, Meta(gt=0)]
Cost = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class Sourced(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str


class Decode(Sourced, frozen=True):
    """Tokens a second of one GPU by the rows that decode together."""

    rows: tuple[Count, ...]
    tokens_per_second: tuple[Positive, ...]
    tokens_per_launch: Count  # between two looks of the engine at which sequences have ended

    def seconds_per_token(self, rows: int) -> float:
        """Of each row; between the measured numbers of rows, on a straight line."""
        points = [(count, count / rate) for count, rate in zip(self.rows, self.tokens_per_second, strict=True)]
        if rows <= points[0][0]:
            return points[0][1]
        for (low, at_low), (high, at_high) in pairwise(points):
            if rows <= high:
                return at_low + (at_high - at_low) * (rows - low) / (high - low)
        return points[-1][1] * rows / points[-1][0]


class Rate(Sourced, frozen=True):
    tokens_per_second: Positive


class Training(Rate, frozen=True, kw_only=True):
    seconds_per_step: Cost = 0.0  # whatever its size

    def seconds(self, tokens: int) -> float:
        return self.seconds_per_step + tokens / self.tokens_per_second


class Http(Sourced, frozen=True):
    """Time that the engine loses to requests."""

    seconds_per_request: Cost
    seconds_per_sequence: Cost


class TokenCost(Sourced, frozen=True):
    seconds_per_token: Cost


class AllReduce(Sourced, frozen=True):
    bytes: Cost
    gpus_per_node: Count
    bytes_per_second_in_node: Positive
    bytes_per_second_between_nodes: Positive

    def seconds(self, ranks: int) -> float:
        """A ring: every link carries nearly twice the bytes; between nodes, the slower link sets the pace."""
        is_one_node = ranks <= self.gpus_per_node
        bandwidth = self.bytes_per_second_in_node if is_one_node else self.bytes_per_second_between_nodes
        return 2 * (ranks - 1) / ranks * self.bytes / bandwidth

    def seconds_to_copy(self, readers: int) -> float:
        """Until an inference replica has new weights, where `readers` read from one rank."""
        return readers * self.bytes / self.bytes_per_second_between_nodes


class Restart(Sourced, frozen=True):
    seconds: Cost
    hours_between_failures_of_a_gpu: Positive
    steps_between_checkpoints: Count

    def share_of_time_lost(self, gpus: int, seconds_per_step: float) -> float:
        """Any GPU's failure restarts the gang, and repeats half of the steps since the last checkpoint on average."""
        lost = self.seconds + seconds_per_step * self.steps_between_checkpoints / 2
        return lost * gpus / (self.hours_between_failures_of_a_gpu * 3600)


class Environment(Sourced, frozen=True):
    seconds_per_group: Cost
    groups_in_flight: Count


class Work(Sourced, frozen=True, kw_only=True):
    group_size: Count
    groups_per_gpu: Count
    prompt_tokens: Count
    longest_answer: Count
    mean_answer: Positive | None = None  # None: all are the longest
    answers_per_request: Count | None = None  # None: a group is one request
    max_rows: Count
    max_off_policy_batches: Count


class Inputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    decode: Decode
    prefill: Rate
    training: Training
    http: Http
    api_server: TokenCost
    lease: TokenCost  # rank 0: from the API server's answer to rows
    delivery: TokenCost  # the rows to every rank, where there are several
    all_reduce: AllReduce
    restart: Restart
    environment: Environment
    work: Work


def load(path: Path = RECORDED) -> Inputs:
    return msgspec.toml.decode(path.read_bytes(), type=Inputs)
