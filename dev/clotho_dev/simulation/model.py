"""A run as events: environments start groups, engines finish them, the API server queues them, the ranks train."""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from clotho_dev.simulation.engine import Engine, Group
from clotho_dev.simulation.inputs import Inputs
from clotho_dev.simulation.record import WARM_UP, Record

Schedule = Literal["synchronous", "asynchronous"]

_FEWEST_PIECES = 4  # a rank, where the trainer deals a batch


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`groups_in_flight`: of all environment pods together; None is as many as two batches."""

    ranks: int
    replicas: int = 0  # GPUs that only generate
    schedule: Schedule = "synchronous"
    groups_in_flight: int | None = None
    max_staleness: int = 0  # 0 keeps every group

    @property
    def gpus(self) -> int:
        return self.ranks + self.replicas


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of the steps after the warm-up, the groups of all of them."""

    shape: Shape
    pods: int  # of environments
    seconds_per_step: float
    tokens_per_second: float  # of answers that were trained, restarts taken into account
    waiting_share: float  # of the time, waiting for data; then for the rows of a lease, and for the all-reduce
    lease_share: float
    all_reduce_share: float
    occupancy: float  # of the engines' rows, over the whole time
    busiest: float  # tokens that the busiest rank serves and trains over the mean
    staleness: float
    most_stale: int
    started_groups: int
    trained_groups: int
    dropped_groups: int
    groups_left: int  # in flight or in the queue at the end

    @property
    def tokens_per_gpu_second(self) -> float:
        return self.tokens_per_second / self.shape.gpus


class Simulation:
    def __init__(self, inputs: Inputs, shape: Shape, *, steps: int = 6, seed: int = 0) -> None:
        self._inputs, self._shape = inputs, shape
        self._last_step = WARM_UP + steps
        self._random = random.Random(seed)  # noqa: S311 - lengths of answers, no secret
        work = inputs.work
        self._batch = work.groups_per_gpu * shape.gpus
        paces = [inputs.decode.seconds_per_token(rows) for rows in range(work.max_rows + 1)]
        self._engines = [Engine(inputs, paces, index) for index in range(shape.gpus)]
        self._ranks = self._engines[: shape.ranks]
        self._least_busy = [(0, index) for index in range(shape.gpus)]
        self._is_synchronous = shape.schedule == "synchronous"
        wanted = self._batch * 2 if shape.groups_in_flight is None else shape.groups_in_flight
        self._idle_slots = self._slots = min(wanted, self._batch) if self._is_synchronous else wanted
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._server_free = 0.0
        self._queue: deque[Group] = deque()
        self._refused: deque[Group] = deque()  # by a full queue; the environment sends it again
        self._leased: list[Group] = []
        self._generating = 0  # groups
        self._on_the_way = 0  # groups that are scored and sent
        self._step = 0
        self._step_ended = 0.0
        self._started = self._started_for_step = 0
        self.trained: list[int] = []  # numbers of groups
        self.dropped: list[int] = []
        self._record = Record()

    def run(self) -> Outcome:
        self._start_groups()
        while self._step < self._last_step:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        return self._outcome()

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, happen))

    # Environments and engines

    def _start_groups(self) -> None:
        while self._idle_slots and not (self._is_synchronous and self._started_for_step >= self._batch):
            self._idle_slots -= 1
            self._started += 1
            self._started_for_step += 1
            self._generating += 1
            self._send(self._lengths())

    def _send(self, lengths: Sequence[int]) -> None:
        """The requests of a group, each to the engine with the fewest sequences in flight."""
        group = Group(self._started, lengths, self._step, sum(lengths))
        size = self._inputs.work.answers_per_request or len(lengths)
        for request in _pieces(lengths, size):
            engine = self._route(len(request))
            group.version = min(group.version, engine.version)
            engine.advance(self._now)
            engine.add(group, request)
            self._expect(engine)

    def _route(self, answers: int) -> Engine:
        """Entries of the heap may be out of date."""
        while True:
            in_flight, index = heapq.heappop(self._least_busy)
            engine = self._engines[index]
            if engine.in_flight == in_flight:
                heapq.heappush(self._least_busy, (in_flight + answers, index))
                return engine

    def _lengths(self) -> Sequence[int]:
        work = self._inputs.work
        mean, longest = work.mean_answer, work.longest_answer
        if mean is None:
            return [longest] * work.group_size
        draw = self._random.expovariate
        return [min(max(int(draw(1 / mean)), 1), longest) for _ in range(work.group_size)]

    def _expect(self, engine: Engine) -> None:
        """Look at the engine when its next sequence ends, unless something has changed it before."""
        time = engine.next_change()
        if time is None:
            return
        engine.order += 1
        expected = engine.order
        self._at(time, lambda: self._look_at(engine, expected))

    def _look_at(self, engine: Engine, expected: int) -> None:
        if engine.order != expected or engine.is_paused:
            return
        engine.advance(self._now)
        before = engine.in_flight
        for group in engine.finished():
            self._generating -= 1
            self._on_the_way += 1
            self._at(self._now + self._inputs.environment.seconds_per_group, partial(self._submit, group))
        if engine.in_flight != before:
            heapq.heappush(self._least_busy, (engine.in_flight, engine.index))
        self._expect(engine)

    # The API server

    def _submit(self, group: Group) -> None:
        """One group after the other, as one core takes them."""
        cost = self._tokens(group) * self._inputs.api_server.seconds_per_token
        self._server_free = max(self._server_free, self._now) + cost
        self._at(self._server_free, lambda: self._take(group))

    def _tokens(self, group: Group) -> int:
        """That are sent: every sequence has its prompt."""
        return group.tokens + len(group.lengths) * self._inputs.work.prompt_tokens

    def _take(self, group: Group) -> None:
        self._on_the_way -= 1
        if len(self._queue) >= self._inputs.work.max_off_policy_batches * self._batch:
            self._refused.append(group)
            return
        self._queue.append(group)
        self._idle_slots += 1
        self._start_groups()
        self._lease()

    # The trainer

    def _lease(self) -> None:
        if self._leased or not self._drop_stale():
            return
        self._leased = [self._queue.popleft() for _ in range(self._batch)]
        while self._refused and len(self._queue) < self._inputs.work.max_off_policy_batches * self._batch:
            self._queue.append(self._refused.popleft())
            self._idle_slots += 1
        self._start_groups()
        self._record.waited("data", self._now - self._step_ended)
        decoding = sum(map(self._tokens, self._leased)) * self._inputs.lease.seconds_per_token
        self._record.waited("lease", decoding)
        self._at(self._now + decoding, self._train)

    def _drop_stale(self) -> bool:
        """Whether a batch is left."""
        limit = self._shape.max_staleness
        if limit and len(self._queue) >= self._batch:
            stale = [group for group in self._queue if self._step - group.version > limit]
            self.dropped += [group.number for group in stale]
            self._queue = deque(group for group in self._queue if self._step - group.version <= limit)
        return len(self._queue) >= self._batch

    def _train(self) -> None:
        for engine in self._ranks:
            engine.advance(self._now)
            engine.is_paused = True
        prompt = self._inputs.work.prompt_tokens  # read once for all answers
        shares = deal([group.lengths for group in self._leased], prompt, self._shape.ranks)
        training = self._inputs.training.seconds(max(shares))
        delivering, reducing = self._delivering(), self._inputs.all_reduce.seconds(self._shape.ranks)
        self._record.waited("lease", delivering)
        self._record.waited("all-reduce", reducing)
        self._at(self._now + delivering + training + reducing, lambda: self._end_step(shares))

    def _delivering(self) -> float:
        """Every rank unpacks all rows and deals them, to find its own."""
        if self._shape.ranks == 1:
            return 0.0
        return sum(map(self._tokens, self._leased)) * self._inputs.delivery.seconds_per_token

    def _end_step(self, shares: list[int]) -> None:
        self.trained += [group.number for group in self._leased]
        self._record.trained(self._leased, shares, self._step)
        self._step += 1
        self._step_ended = self._now
        self._leased = []
        for engine in self._ranks:
            engine.advance(self._now)
            engine.is_paused = False
            engine.version = self._step
            self._expect(engine)
        self._update_replicas()
        if self._step == WARM_UP:
            self._record.begin(self._now, self._engines)
        if self._step < self._last_step:
            self._lease()

    def _update_replicas(self) -> None:
        """They follow a moment later; a synchronous step begins when all have the new weights."""
        replicas = self._engines[self._shape.ranks :]
        readers = math.ceil(len(replicas) / self._shape.ranks)
        step = self._step

        def update() -> None:
            for engine in replicas:
                engine.version = step
            self._started_for_step = 0
            self._start_groups()

        self._at(self._now + self._inputs.all_reduce.seconds_to_copy(readers), update)

    def _outcome(self) -> Outcome:
        for engine in self._engines:
            engine.advance(self._now)
        seconds = self._now - self._record.began
        per_step = seconds / (self._step - WARM_UP)
        rows = self._shape.gpus * self._inputs.work.max_rows
        waiting = len(self._queue) + len(self._refused) + len(self._leased)
        lost = self._inputs.restart.share_of_time_lost(self._shape.gpus, per_step)
        return Outcome(
            shape=self._shape,
            pods=math.ceil(self._slots / self._inputs.environment.groups_in_flight),
            seconds_per_step=per_step,
            tokens_per_second=self._record.tokens / seconds / (1 + lost),
            waiting_share=self._record.waiting["data"] / seconds,
            lease_share=self._record.waiting["lease"] / seconds,
            all_reduce_share=self._record.waiting["all-reduce"] / seconds,
            occupancy=self._record.row_seconds(self._engines) / (seconds * rows),
            busiest=self._record.busiest(self._ranks),
            staleness=sum(self._record.ages) / len(self._record.ages),
            most_stale=max(self._record.ages),
            started_groups=self._started,
            trained_groups=len(self.trained),
            dropped_groups=len(self.dropped),
            groups_left=waiting + self._on_the_way + self._generating,
        )


def deal(groups: Sequence[Sequence[int]], prompt: int, ranks: int) -> list[int]:
    """Tokens of each rank, from the lengths of answers, dealt as the trainer deals them: where groups are few they are
    split, and each piece, largest first, goes to the rank that has the fewest tokens so far. A rank reads the prompt of
    several pieces once."""
    cuts = math.ceil(_FEWEST_PIECES * ranks / len(groups))
    pieces = [(sum(piece), number) for number, lengths in enumerate(groups) for piece in _split(lengths, cuts)]
    fewest = [(0, rank) for rank in range(ranks)]
    tokens, prompts = [0] * ranks, [set[int]() for _ in range(ranks)]
    for answers, number in sorted(pieces, key=lambda piece: -piece[0]):
        share, rank = heapq.heappop(fewest)
        heapq.heappush(fewest, (share + prompt + answers, rank))
        tokens[rank] += answers
        prompts[rank].add(number)
    return [answers + prompt * len(read) for answers, read in zip(tokens, prompts, strict=True)]


def _split(lengths: Sequence[int], cuts: int) -> list[Sequence[int]]:
    return _pieces(lengths, math.ceil(len(lengths) / min(cuts, len(lengths))))


def _pieces(lengths: Sequence[int], size: int) -> list[Sequence[int]]:
    return [lengths[start : start + size] for start in range(0, len(lengths), size)]
