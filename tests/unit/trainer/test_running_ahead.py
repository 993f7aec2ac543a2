"""The fast engine launches more before it books what was sampled; a scripted decoder notes the order."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clotho_trainer.inference.core import live_engine
from clotho_trainer.inference.core.engine import Completion, Delta, EngineBusyError, Request, Sampling
from clotho_trainer.inference.core.scheduler import Scheduler
from clotho_trainer.inference.core.sequences import Sequence as Row
from clotho_trainer.inference.core.sequences import State
from clotho_trainer.inference.paged import engine as paged
from clotho_trainer.inference.paged.cache import CacheShape
from clotho_trainer.inference.paged.decoder import STEPS
from clotho_trainer.model.live import LiveWeights

END, BLOCK, VOCABULARY = 1, 4, 100
pytestmark = pytest.mark.timeout(30)


def token_at(first: int, position: int) -> int:
    return 10 + (7 * first + 3 * position) % 90


@dataclass
class Flight:
    decoder: "Scripted"
    number: int
    steps: int
    tokens: list[list[int]]
    logprobs: list[list[float]]

    def wait_for_last_step(self) -> None:
        self.decoder.on_last_step(self.number)

    def collect(self) -> tuple[list[list[int]], list[list[float]]]:
        self.decoder.notes.append(f"collect {self.number}")
        self.decoder.in_flight -= 1
        return self.tokens, self.logprobs


class Scripted:
    """A row is known by the first token of its prompt, which tells what is sampled at each position; the
    log-probability is the negative version of the weights. Every step checks that what it attends to is the row's."""

    def __init__(self, *_: object, **__: object) -> None:
        self.notes: list[str] = []
        self.ends: dict[int, int] = {}  # row: the position at which the end is sampled
        self.on_last_step: Callable[[int], None] = lambda number: None
        self.version: Callable[[], int] = lambda: 0
        self.launched = self.in_flight = 0
        self.loaded: dict[int, Row] = {}
        self._rows: list[list[int]] = []
        self._tables: list[list[int]] = []
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}

    def sample(self, first: int, position: int) -> int:
        return END if self.ends.get(first) == position else token_at(first, position)

    def load(self, rows: Sequence[Row]) -> None:
        assert not self.in_flight, "the host does not know these rows' tokens yet"
        self.notes.append("load")
        self.loaded |= {row.request.prompt[0]: row for row in rows}
        self._rows = [[row.request.prompt[0], row.position, row.last_position, row.cached] for row in rows]
        self._tables = [list(row.blocks) for row in rows]

    def load_tables(self, rows: Sequence[Row]) -> None:
        self.notes.append("load tables")
        self._tables = [list(row.blocks) for row in rows]

    def launch(self, rows: int, steps: int) -> Flight:
        assert rows == len(self._rows)
        assert 1 <= steps <= STEPS
        self.notes.append(f"launch {self.launched}")
        self.launched += 1
        self.in_flight += 1
        assert self.in_flight <= 2
        drawn = [[self._step(index) for _ in range(steps)] for index in range(rows)]
        logprobs = [[-float(self.version())] * steps for _ in range(rows)]
        return Flight(self, self.launched - 1, steps, drawn, logprobs)

    def _step(self, index: int) -> int:
        first, position, last, cached = self._rows[index]
        if position >= cached:
            self._write(first, position, self._tables[index])
        cells = [self._cells[self._tables[index][at // BLOCK], at % BLOCK] for at in range(position + 1)]
        assert cells == [(first, at) for at in range(position + 1)], "another sequence wrote to its blocks"
        self._rows[index][1] = min(position + 1, last)
        return self.sample(first, position + 1)

    def prefill(self, prompts: Sequence[Sequence[int]], tables: Sequence[Sequence[int]]) -> torch.Tensor:
        assert not self.in_flight
        self.notes.append("prefill")
        logits = torch.full((len(prompts), VOCABULARY), -1e9)
        for row, (prompt, table) in enumerate(zip(prompts, tables, strict=True)):
            for position in range(len(prompt)):
                self._write(prompt[0], position, table)
            logits[row, self.sample(prompt[0], len(prompt))] = 0.0
        return logits

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        assert not self.in_flight
        self.notes.append("copy")
        for source, target in zip(sources, targets, strict=True):
            for at in range(BLOCK):
                if (source, at) in self._cells:
                    self._cells[target, at] = self._cells[source, at]

    def _write(self, first: int, position: int, table: Sequence[int]) -> None:
        self._cells[table[position // BLOCK], position % BLOCK] = (first, position)

    def capture(self) -> None:
        pass


@pytest.fixture
def live() -> LiveWeights:
    model: Any = SimpleNamespace(device="cpu", train=lambda mode: None)
    return LiveWeights(model, SimpleNamespace(decode=lambda tokens, **_: "".join(map(chr, tokens))))


Serving = Callable[..., Any]


@pytest.fixture
def serving(live: LiveWeights, monkeypatch: pytest.MonkeyPatch) -> Serving:
    monkeypatch.setattr(paged, "Decoder", Scripted)
    monkeypatch.setattr(live_engine, "_freeze_garbage_collection", lambda: None)  # 0.3 s each
    weights: Any = SimpleNamespace(cos=range(1000), refresh=lambda: None)

    @asynccontextmanager
    async def serve(*, blocks: int = 500, rows: int = 8) -> AsyncIterator[tuple[paged.FastEngine, Scripted]]:
        """`blocks` can be allocated; the null block comes on top."""
        engine = paged.FastEngine(live, weights, frozenset({END}), CacheShape(blocks + 1, BLOCK), max_rows=rows)
        decoder: Any = engine._decoder
        decoder.version = lambda: live.version
        await engine.start()
        try:
            yield engine, decoder
        finally:
            await engine.stop()
            assert engine._scheduler.free_blocks == blocks, "every block was freed"

    return serve


def prompt(first: int, length: int = 3) -> tuple[int, ...]:
    return (first,) * length


async def ask(engine: paged.FastEngine, first: int, limit: int, **options: Any) -> Completion:
    (completion,) = await engine.generate(Request(prompt(first), Sampling(max_tokens=limit), **options))
    return completion


def expected(first: int, count: int, *, length: int = 3) -> tuple[int, ...]:
    return tuple(token_at(first, length + index) for index in range(count))


def on_loop(action: Callable[[], object]) -> Callable[[], None]:
    """Run it on this event loop, from another thread, and wait until what it has caused there is done."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        done = threading.Event()
        loop.call_soon_threadsafe(action)
        for _ in range(3):  # a task's first step, and the callbacks of what it cancels
            done.clear()
            loop.call_soon_threadsafe(done.set)
            assert done.wait(10)

    return run


def at_flight(number: int, action: Callable[[], None]) -> Callable[[int], None]:
    return lambda seen: action() if seen == number else None


async def test_the_next_flight_is_launched_before_the_last_is_booked(serving: Serving) -> None:
    async with serving() as (engine, decoder):
        completion = await ask(engine, 50, 1 + 3 * STEPS)
    flights = ["launch 0", "launch 1", "collect 0", "launch 2", "collect 1", "collect 2"]
    assert [note for note in decoder.notes if "tables" not in note] == ["prefill", "load", *flights]
    assert completion.tokens == expected(50, 1 + 3 * STEPS)


@pytest.mark.parametrize("limit", range(1, 2 * STEPS + 4))
async def test_a_limit_is_exact_and_no_flight_is_launched_beyond_it(serving: Serving, limit: int) -> None:
    async with serving() as (engine, decoder):
        completion = await ask(engine, 50, limit)
    assert (completion.tokens, completion.finish_reason) == (expected(50, limit), "length")
    assert decoder.launched == -(-(limit - 1) // STEPS)


@pytest.mark.parametrize("length", range(2, 2 * STEPS + 3))
async def test_what_is_sampled_after_an_end_is_dropped(serving: Serving, length: int) -> None:
    """Another sequence goes on, and so does one whose own limit lies in the flight that is dropped for the first."""
    async with serving() as (engine, decoder):
        decoder.ends[50] = 3 + length - 1
        ended, limited, longer = await asyncio.gather(
            ask(engine, 50, 90), ask(engine, 60, length + 2), ask(engine, 70, 30)
        )
    assert (ended.tokens, ended.finish_reason) == ((*expected(50, length - 1), END), "stop")
    assert len(ended.logprobs) == len(decoder.loaded[50].tokens) == length, "nothing was added after its end"
    assert (limited.tokens, longer.tokens) == (expected(60, length + 2), expected(70, 30))


async def test_a_stop_string_ends_a_sequence_whose_next_flight_is_launched(serving: Serving) -> None:
    async with serving() as (engine, decoder):
        tokens = expected(50, 9)
        word = "".join(map(chr, tokens[3:5]))
        sampling = Sampling(max_tokens=40, stop=(word,))
        (completion,) = await engine.generate(Request(prompt(50), sampling))
    assert completion.tokens == tokens[:5]
    assert completion.text == "".join(map(chr, tokens[:3]))
    assert decoder.notes.index("launch 1") < decoder.notes.index("collect 0")


@pytest.mark.parametrize("interrupted", [[0], [1], [0, 1, 2, 5]], ids=str)
async def test_training_finds_nothing_in_flight_and_each_token_has_its_version(
    serving: Serving, live: LiveWeights, interrupted: list[int]
) -> None:
    async with serving() as (engine, decoder):
        found: list[int] = []
        threads: list[threading.Thread] = []

        def train() -> None:
            with live.training():
                found.append(decoder.in_flight)
                live.version += 1

        def interrupt(number: int) -> None:
            if number in interrupted:
                threads.append(threading.Thread(target=train))
                threads[-1].start()
                while not live.training_is_waiting:
                    threading.Event().wait(0.001)

        decoder.on_last_step = interrupt
        completion = await ask(engine, 50, 40)
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert completion.tokens == expected(50, 40)
    assert found == [0] * len(interrupted)
    sampled_with = [-int(value) for value in completion.logprobs]
    booked_to = [version for version, count in completion.versions for _ in range(count)]
    assert booked_to[1:] == sampled_with[1:], "the first token's log-probability is the sampler's"
    assert sorted(set(booked_to)) == list(range(len(interrupted) + 1))


async def test_an_arrival_waits_for_no_flight_that_was_not_launched_yet(serving: Serving) -> None:
    async with serving() as (engine, decoder):
        tasks: list[asyncio.Task[Completion]] = []
        decoder.on_last_step = at_flight(1, on_loop(lambda: tasks.append(asyncio.create_task(ask(engine, 60, 20)))))
        first = await ask(engine, 50, 40)
        second = await tasks[0]
    notes = [note for note in decoder.notes if "tables" not in note]
    assert notes[notes.index("launch 1") :][:5] == ["launch 1", "collect 0", "collect 1", "prefill", "load"]
    assert (first.tokens, second.tokens) == (expected(50, 40), expected(60, 20))


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, 2 * BLOCK], ids=["partly filled", "one block", "two blocks"])
async def test_a_prompt_is_read_once_until_the_weights_change(serving: Serving, live: LiveWeights, length: int) -> None:
    request = Request(prompt(50, length), Sampling(max_tokens=6))
    async with serving() as (engine, decoder):
        answers = [(await engine.generate(request))[0] for _ in range(3)]
        assert decoder.notes.count("prefill") == 1
        with live.training():
            live.version += 1
        answers += await engine.generate(request)
    assert {answer.tokens for answer in answers} == {expected(50, 6, length=length)}
    assert decoder.notes.count("prefill") == 2
    assert decoder.notes.count("copy") == (2 if length % BLOCK else 0), "full blocks are shared"


async def test_a_known_prompt_joins_those_that_run_without_a_pass(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block is the only one that changes."""
    monkeypatch.setattr(f"{__name__}.BLOCK", 64)
    async with serving() as (engine, decoder):
        tasks: list[asyncio.Task[Completion]] = []
        decoder.on_last_step = at_flight(1, on_loop(lambda: tasks.append(asyncio.create_task(ask(engine, 50, 20)))))
        first = await ask(engine, 50, 40)
        second = await tasks[0]
    notes = [note for note in decoder.notes if "tables" not in note]
    assert notes[notes.index("launch 1") :][:5] == ["launch 1", "collect 0", "collect 1", "copy", "load"]
    assert (first.tokens, second.tokens) == (expected(50, 40), expected(50, 20))


async def test_a_cancelled_sequence_leaves_before_more_is_launched(serving: Serving) -> None:
    async with serving() as (engine, decoder):
        cancelled = asyncio.create_task(ask(engine, 50, 400))
        decoder.on_last_step = at_flight(1, on_loop(cancelled.cancel))
        other = await ask(engine, 60, 60)
        assert cancelled.cancelled()
    notes = [note for note in decoder.notes if "tables" not in note]
    assert notes[notes.index("launch 1") :][:4] == ["launch 1", "collect 0", "collect 1", "load"]
    assert other.tokens == expected(60, 60)


async def test_streamed_tokens_come_in_order(serving: Serving) -> None:
    deltas: list[Delta] = []
    async with serving() as (engine, _):
        completion = await ask(engine, 50, 1 + 5 * STEPS, on_delta=deltas.append)
    assert [len(delta.tokens) for delta in deltas] == [1, *[STEPS] * 4], "the last come with the completion"
    streamed = [token for delta in deltas for token in delta.tokens]
    assert completion.tokens == expected(50, 1 + 5 * STEPS)
    assert tuple(streamed) == completion.tokens[: len(streamed)]


KINDS = {first: (1 + 37 * first % 77, 1 + 29 * first % 49) for first in range(20, 60)}  # end and limit, in tokens


async def _all_kinds(engine: paged.FastEngine, decoder: Scripted) -> list[Completion]:
    decoder.ends |= {first: 3 + end for first, (end, _) in KINDS.items()}
    return list(await asyncio.gather(*(ask(engine, first, limit) for first, (_, limit) in KINDS.items())))


async def test_preempted_waiting_and_ended_sequences_get_the_same_tokens_without_running_ahead(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More sequences than rows, and hardly blocks for half of the rows."""
    preempted: list[Row] = []
    release = Scheduler._release

    def watched(scheduler: Scheduler, row: Row, state: State) -> None:
        if state is State.PREEMPTED:
            preempted.append(row)
        release(scheduler, row, state)

    monkeypatch.setattr(Scheduler, "_release", watched)
    async with serving(blocks=28, rows=6) as served:
        ahead = await _all_kinds(*served)
    assert len(preempted) > 3
    for (first, (end, limit)), completion in zip(KINDS.items(), ahead, strict=True):
        assert completion.tokens == ((*expected(first, end), END) if end < limit else expected(first, limit))
    monkeypatch.setattr(paged.FastEngine, "_run_ahead", lambda self: None)
    async with serving(blocks=28, rows=6) as served:
        in_turns = await _all_kinds(*served)
    assert ahead == in_turns


async def test_what_is_in_flight_is_dropped_when_memory_runs_out(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    async with serving() as (engine, decoder):
        launch: Callable[[int, int], Flight] = decoder.launch

        def without_memory(rows: int, steps: int) -> Flight:
            if decoder.launched == 1:
                decoder.launch = launch
                decoder.in_flight = 0
                raise torch.OutOfMemoryError
            return launch(rows, steps)

        decoder.launch = without_memory
        with pytest.raises(EngineBusyError, match="out of GPU memory"):
            await ask(engine, 50, 40)
        assert "collect 0" not in decoder.notes
        again = await ask(engine, 60, 40)
    assert again.tokens == expected(60, 40)
