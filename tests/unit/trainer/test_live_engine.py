"""What all engines over the live weights share, with a decoder that answers at once."""

import asyncio
import gc
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from clotho_trainer.inference.core import live_engine
from clotho_trainer.inference.core.block_manager import BlockManager
from clotho_trainer.inference.core.engine import EngineBusyError, Request, Sampling
from clotho_trainer.inference.core.live_engine import LiveEngine
from clotho_trainer.inference.core.scheduler import Scheduler


class Instant(LiveEngine):
    """Writes the prompt's last token once for each sample."""

    def __init__(self) -> None:
        tokenizer = SimpleNamespace(decode=lambda tokens, **_: "".join(map(chr, tokens)))
        live: Any = SimpleNamespace(tokenizer=tokenizer, training_is_waiting=False, decoding=nullcontext)
        live.version = 3
        scheduler = Scheduler(BlockManager(64, block_size=8), max_running=32, max_prefill_tokens=1000)
        super().__init__(live, frozenset(), scheduler, context=8)

    def _advance(self) -> None:
        for prefill in self._scheduler.admit():
            count = len(prefill.sequences)
            self._write(prefill.sequences, [prefill.past[-1:]] * count, [(-0.5,)] * count)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("many", [1, 1000], ids=["in another thread", "at once"])
async def test_each_request_of_a_burst_gets_its_own_answer(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_engine, "_MANY_TOKENS", many)
    engine = Instant()
    await engine.start()
    for _ in range(3):  # the engine falls idle in between
        burst = [Request((1, ord(letter)), Sampling(max_tokens=1), n=2) for letter in "abcdefgh"]
        answers = await asyncio.gather(*map(engine.generate, burst))
        assert ["".join(each.text for each in answer) for answer in answers] == [2 * letter for letter in "abcdefgh"]
    await engine.stop()
    with pytest.raises(EngineBusyError, match="shutting down"):
        await engine.generate(burst[0])


class Passing(Instant):
    """Reads prompts in one turn and writes in the next; notes how many prompts each pass has."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[int] = []

    def _advance(self) -> None:
        if running := list(self._scheduler.running):
            self._write(running, [(97,)] * len(running), [(-0.5,)] * len(running))
        elif prefills := self._scheduler.admit():
            self.passes.append(len(prefills))


async def ask_one_after_the_other(engine: LiveEngine, prompts: list[int], pause: float = 0.0) -> None:
    tasks = []
    for prompt in prompts:
        tasks.append(asyncio.create_task(engine.generate(Request((1, prompt), Sampling(max_tokens=1), n=2))))
        await asyncio.sleep(pause)
    await asyncio.gather(*tasks)


@pytest.mark.timeout(30)
async def test_those_who_got_answers_are_awaited_and_their_prompts_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Passing()
    await engine.start()
    monkeypatch.setattr(live_engine, "_BURST", (0.5, 0.5))
    await ask_one_after_the_other(engine, [2, 3, 4])
    monkeypatch.setattr(live_engine, "_BURST", (0.001, 0.001))
    monkeypatch.setattr(live_engine, "_BURST_OF_THOSE_ANSWERED", (3600.0, 3600.0))  # only the third request can end it
    await ask_one_after_the_other(engine, [5, 6, 7], pause=0.02)
    assert engine.passes == [3, 3]
    monkeypatch.setattr(live_engine, "_BURST_OF_THOSE_ANSWERED", (0.02, 3600.0))
    await ask_one_after_the_other(engine, [8])  # the others have gone
    assert engine.passes == [3, 3, 1]
    await engine.stop()


@pytest.mark.timeout(30)
async def test_a_request_that_arrives_between_two_answers_is_seen_before_the_second() -> None:
    engine = Passing()
    await engine.start()
    seen: list[str] = []

    async def ask(letter: str) -> None:
        await engine.generate(Request((1, ord(letter)), Sampling(max_tokens=1)))
        seen.append(letter)
        if letter == "a":
            asyncio.get_running_loop().call_soon(seen.append, "a request")

    await asyncio.gather(*map(ask, "abc"))
    assert seen == ["a", "a request", "b", "c"]
    await engine.stop()


async def test_the_decoder_does_not_wait_long_for_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    intervals: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", intervals.append)
    engine = Instant()
    await engine.start()
    await engine.stop()
    assert len(intervals) == 1
    assert intervals[0] <= 1e-4


@pytest.mark.timeout(30)
async def test_an_idle_engine_stops_at_once() -> None:
    engine = Instant()
    await engine.start()
    await engine.stop()
    assert not engine._thread.is_alive()


@pytest.mark.timeout(30)
async def test_garbage_collection_skips_long_lived_objects() -> None:
    engine = Instant()
    await engine.start()
    at_the_start = gc.get_freeze_count()
    assert at_the_start > 0
    compiled = [[number] for number in range(1000)]  # stands for what the first step leaves behind
    await engine.publish()
    after_a_step = gc.get_freeze_count()
    assert after_a_step >= at_the_start + len(compiled)
    more = [[number] for number in range(1000)]
    await engine.publish()
    assert gc.get_freeze_count() < after_a_step + len(more), "later steps leave nothing that lasts"
    await engine.stop()
    assert gc.get_freeze_count() == 0


@pytest.mark.timeout(30)
async def test_a_request_that_cannot_be_scored_does_not_stop_the_engine() -> None:
    engine = Instant()  # its policy has no model
    await engine.start()
    with pytest.raises(EngineBusyError, match="scoring failed"):
        await engine.score((1, 2, 3), 0)
    (answer,) = await engine.generate(Request((1, ord("a")), Sampling(max_tokens=1)))
    assert (answer.text, engine.problem()) == ("a", None)
    await engine.stop()


@pytest.mark.timeout(30)
async def test_an_answer_whose_text_cannot_be_made_does_not_stop_the_engine() -> None:
    engine = Instant()
    await engine.start()
    with pytest.raises(ValueError, match="chr"):
        await engine.generate(Request((1, 2**30), Sampling(max_tokens=1)))  # no such character
    (answer,) = await engine.generate(Request((1, ord("a")), Sampling(max_tokens=1)))
    assert (answer.text, engine.problem()) == ("a", None)
    await engine.stop()
