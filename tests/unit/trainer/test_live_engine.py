"""What all engines over the live weights share, with a decoder that answers at once."""

import asyncio
import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from clotho_trainer.inference.core.engine import EngineBusyError, Request, Sampling
from clotho_trainer.inference.core.live_engine import LiveEngine


class Instant(LiveEngine):
    """Writes the prompt's last token once for each sample."""

    def __init__(self) -> None:
        tokenizer = SimpleNamespace(decode=lambda tokens, **_: "".join(map(chr, tokens)))
        live: Any = SimpleNamespace(tokenizer=tokenizer, training_is_waiting=False, decoding=nullcontext)
        super().__init__(live, frozenset(), context=8)

    def _advance(self) -> None:
        with self._work:
            samples = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for sample in samples:
            sample.add(sample.request.prompt[-1:], (-0.5,), 3)
            sample.answer.add(self._scribe.completion(sample, "length"))

    def _clear(self) -> None: ...


@pytest.mark.timeout(30)
async def test_a_swarm_of_requests_is_answered_each_with_its_own() -> None:
    engine = Instant()
    await engine.start()
    for _ in range(3):  # the engine falls idle in between
        swarm = [Request((1, ord(letter)), Sampling(max_tokens=1), n=2) for letter in "abcdefgh"]
        answers = await asyncio.gather(*map(engine.generate, swarm))
        assert ["".join(each.text for each in answer) for answer in answers] == [2 * letter for letter in "abcdefgh"]
    await engine.stop()
    with pytest.raises(EngineBusyError, match="shutting down"):
        await engine.generate(swarm[0])


@pytest.mark.timeout(30)
async def test_an_idle_engine_stops_at_once() -> None:
    engine = Instant()
    await engine.start()
    await engine.stop()
    assert not engine._thread.is_alive()


@pytest.mark.timeout(30)
async def test_collections_pass_over_what_lasts_as_long_as_the_engine() -> None:
    engine = Instant()
    await engine.start()
    at_the_start = gc.get_freeze_count()
    assert at_the_start > 0
    compiled = [[number] for number in range(1000)]  # stands for what the first step leaves
    await engine.publish()
    after_a_step = gc.get_freeze_count()
    assert after_a_step >= at_the_start + len(compiled)
    more = [[number] for number in range(1000)]
    await engine.publish()
    assert gc.get_freeze_count() < after_a_step + len(more), "later steps leave nothing that lasts"
    await engine.stop()
    assert gc.get_freeze_count() == 0
