"""Which sequences run or wait, and which blocks they own: decided without a model."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from clotho_trainer.inference.core.block_manager import BlockManager
from clotho_trainer.inference.core.engine import FinishReason, Request, Sampling
from clotho_trainer.inference.core.scheduler import Prefill, Scheduler, prefill_batches
from clotho_trainer.inference.core.sequences import Sequence as Running
from clotho_trainer.inference.core.sequences import State

BLOCK = 4


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def scheduler(
    blocks: int = 100, *, rows: int = 8, prefill: int = 1000, watermark: float = 0.0, kept: int = 0
) -> Scheduler:
    """`blocks` can be allocated; the null block comes on top."""
    manager = BlockManager(blocks + 1, BLOCK)
    return Scheduler(manager, max_running=rows, max_prefill_tokens=prefill, watermark=watermark, kept_prompts=kept)


def sequence(loop: asyncio.AbstractEventLoop, prompt: str, limit: int = 20) -> Running:
    future: asyncio.Future[FinishReason] = loop.create_future()
    return Running(Request(tuple(map(ord, prompt)), Sampling()), future, limit)


def text(entries: Sequence[Running]) -> str:
    return " ".join("".join(map(chr, entry.request.prompt)) for entry in entries)


def write(entries: Sequence[Running], count: int) -> None:
    for entry in entries:
        entry.add([120] * count, [-1.0] * count, version=0)


@dataclass
class Admission:
    name: str
    prompts: str
    running: str
    waiting: str = ""
    blocks: int = 100
    rows: int = 8
    prefill: int = 1000


@pytest.mark.parametrize(
    "case",
    [
        Admission("everything fits", "aa bb cc", running="aa bb cc"),
        Admission("as many as there are rows", "aa bb cc", rows=2, running="aa bb", waiting="cc"),
        Admission("as many as there are blocks", "aaaa bbbb cccc", blocks=2, running="aaaa bbbb", waiting="cccc"),
        Admission("nothing overtakes a long prompt", "aaaaaaaaa b", blocks=2, running="", waiting="aaaaaaaaa b"),
        Admission("one pass reads only so many tokens", "aaaa bbbb cc", prefill=5, running="aaaa bbbb", waiting="cc"),
        Admission("a common prompt counts once in a pass", "aaaa aaaa bbbb", prefill=5, running="aaaa aaaa bbbb"),
        Admission("equal prompts run next to each other", "aa bb aa", running="aa aa bb"),
        Admission("sharing saves blocks", "aaaaa aaaaa aaaaa", blocks=4, running="aaaaa aaaaa aaaaa"),
    ],
    ids=lambda case: case.name,
)
def test_sequences_are_admitted_within_rows_tokens_and_blocks(case: Admission, loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(case.blocks, rows=case.rows, prefill=case.prefill)
    decides.add(sequence(loop, prompt) for prompt in case.prompts.split())
    decides.admit()
    assert (text(decides.running), text(decides.waiting)) == (case.running, case.waiting)
    assert {entry.state for entry in decides.running} <= {State.RUNNING}
    assert {entry.state for entry in decides.waiting} <= {State.WAITING}


@pytest.mark.parametrize(
    ("prompt", "own_blocks", "copied"),
    [("abc", 1, True), ("abcd", 0, False), ("abcdef", 1, True)],
    ids=["one partly filled block", "one full block", "a full block and a partly filled one"],
)
def test_full_blocks_of_a_common_prompt_are_shared_and_the_last_is_copied(
    prompt: str, own_blocks: int, copied: bool, loop: asyncio.AbstractEventLoop
) -> None:
    decides = scheduler()
    decides.add([sequence(loop, prompt), sequence(loop, prompt)])
    (prefill,) = decides.admit()
    first, second = prefill.sequences
    assert len(set(second.blocks) - set(first.blocks)) == own_blocks
    assert prefill.block_copies(BLOCK) == ([(first.blocks[-1], second.blocks[-1])] if copied else [])
    decides.finish([first])
    taken = 100 - decides.free_blocks
    assert taken == len(second.blocks), "what the other still needs stays allocated"
    decides.finish([second])
    assert decides.free_blocks == 100


def test_free_blocks_are_kept_for_the_running_when_others_are_admitted(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(blocks=6, watermark=0.5)
    decides.add(sequence(loop, prompt) for prompt in ("aaaa", "bbbb", "cccc", "dddd"))
    decides.admit()
    assert text(decides.running) == "aaaa bbbb cccc dddd", "the first batch may fill the cache"
    decides.add([sequence(loop, "eeee")])
    decides.admit()
    assert text(decides.waiting) == "eeee", "two free blocks, and two are kept for the four that run"
    decides.finish(decides.running[:2])
    decides.admit()
    assert text(decides.running) == "cccc dddd eeee"


def test_blocks_grow_with_the_sequence_and_never_beyond_its_limit(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler()
    entry = sequence(loop, "abc", limit=4)
    decides.add([entry])
    decides.admit()
    write([entry], 1)
    assert not decides.reserve(1), "the fourth token still fits"
    assert decides.reserve(2)
    assert len(entry.blocks) == 2
    assert not decides.reserve(100), "the limit of four tokens needs no third block"


def test_the_youngest_is_preempted_when_blocks_run_out_and_readmitted_first(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(blocks=3)
    old, middle, young = entries = [sequence(loop, prompt) for prompt in ("aaaa", "bbbb", "cccc")]
    decides.add(entries)
    decides.admit()
    write(entries, 1)
    decides.add([sequence(loop, "dddd")])
    assert decides.reserve(1)
    assert text(decides.running) == "aaaa", "its second block came from the youngest; the next had none left"
    assert [entry.state for entry in (old, middle, young)] == [State.RUNNING, State.PREEMPTED, State.PREEMPTED]
    assert text(decides.waiting) == "bbbb cccc dddd"
    decides.finish([old])
    (again,) = decides.admit()
    assert again.past == (*middle.request.prompt, 120), "what was sampled already is read, not sampled again"
    assert middle.state is State.RUNNING


@dataclass
class Ahead:
    name: str
    steps: int
    limits: tuple[int, ...] = (20, 20)
    blocks: int = 100
    rows: int = 8
    waiting: str = ""
    cancels: bool = False
    more: int = 0  # that run, too


@pytest.mark.parametrize(
    "case",
    [
        Ahead("nothing changes", steps=4),
        Ahead("up to the last limit", limits=(7, 5), steps=2),
        Ahead("a sequence that ends is only an idle row", limits=(20, 3), steps=4),
        Ahead("all end in the steps that fly", limits=(5, 3), steps=0),
        Ahead("another can be admitted", waiting="c", steps=0),
        Ahead("another waits for others while many run", waiting="c", more=5, steps=4),
        Ahead("another waits for a row", waiting="c", rows=2, limits=(20, 3), steps=4),
        Ahead("another waits for blocks", waiting="c" * 16, blocks=7, steps=4),
        Ahead("a cancelled one is to be removed", cancels=True, steps=0),
        Ahead("just enough blocks", blocks=6, steps=4),
        Ahead("one would be preempted", blocks=5, steps=0),
        Ahead("no blocks beyond a limit", blocks=5, limits=(20, 5), steps=4),
    ],
    ids=lambda case: case.name,
)
def test_steps_are_launched_ahead_while_the_rows_stay_the_same(case: Ahead, loop: asyncio.AbstractEventLoop) -> None:
    """Four steps fly; the prompts fill a block each, and one token of each is known."""
    decides = scheduler(case.blocks, rows=case.rows)
    entries = [sequence(loop, prompt, limit) for prompt, limit in zip(("aaaa", "bbbb"), case.limits, strict=True)]
    entries += [sequence(loop, "mmmm", 20) for _ in range(case.more)]
    decides.add(entries)
    decides.admit()
    write(entries, 1)
    decides.reserve(4)
    decides.add(sequence(loop, prompt) for prompt in case.waiting.split())
    if case.cancels:
        entries[0].future.cancel()
    free = decides.free_blocks
    assert decides.steps_ahead(4, 4) == case.steps
    assert (decides.free_blocks, decides.running) == (free, entries), "it only decides"
    if case.steps:
        decides.reserve(4 + case.steps)
        assert decides.running == entries, "none was preempted"


@pytest.mark.parametrize(
    ("running", "waiting", "chunks"),
    [(0, 1, 0), (3, 1, 0), (4, 1, 1), (10, 1, 2), (12, 1, 3), (12, 3, 1), (12, 20, 0)],
)
def test_sequences_wait_for_others_until_they_have_lost_as_much_as_reading_them_costs(
    running: int, waiting: int, chunks: int, loop: asyncio.AbstractEventLoop
) -> None:
    """Chunks of four steps; sixteen rows, of which the four that are free count."""
    decides = scheduler(rows=16)
    decides.add([sequence(loop, f"{index:04}") for index in range(running)])
    decides.admit()
    decides.add([sequence(loop, f"{index:04}") for index in range(running, running + waiting)])
    for _ in range(chunks):
        assert decides.gathers(4)
        decides.pass_steps(4)
    assert not decides.gathers(4)
    decides.admit()
    assert decides.gathers(4) is bool(decides.running), "all that had a place run, and the next begin anew"


def test_none_waits_for_others_for_long(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(1000, rows=400, prefill=10_000)
    decides.add([sequence(loop, f"{index:04}") for index in range(300)])
    decides.admit()
    decides.add([sequence(loop, "late")])
    for _ in range(8):
        assert decides.gathers(4)
        decides.pass_steps(4)
    assert not decides.gathers(4), "after 32 steps"


def test_cancelled_sequences_are_removed_whether_running_or_waiting(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(rows=1)
    running, waiting, last = entries = [sequence(loop, prompt) for prompt in ("aaaa", "bbbb", "cccc")]
    decides.add(entries)
    decides.admit()
    assert not decides.finish_cancelled()
    running.future.cancel()
    waiting.future.cancel()
    assert decides.finish_cancelled()
    decides.admit()
    assert decides.running == [last]
    assert [running.state, waiting.state] == [State.FINISHED, State.FINISHED]
    assert decides.free_blocks == 99


@pytest.mark.parametrize(("with_waiting", "lost"), [(False, "aa"), (True, "aa bb")])
def test_clearing_frees_every_block(with_waiting: bool, lost: str, loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(rows=1)
    decides.add([sequence(loop, "aa"), sequence(loop, "bb")])
    decides.admit()
    assert text(decides.clear(with_waiting=with_waiting)) == lost
    assert (decides.free_blocks, decides.running) == (100, [])
    assert decides.has_work is not with_waiting


@pytest.mark.parametrize(("prompt", "own_blocks"), [("abc", 1), ("abcd", 0), ("abcdef", 1), ("abcdefgh", 0)], ids=str)
def test_a_prompt_that_was_read_before_is_not_read_again(
    prompt: str, own_blocks: int, loop: asyncio.AbstractEventLoop
) -> None:
    """Though the one that it was read for has ended."""
    decides = scheduler(kept=8)
    first, second = sequence(loop, prompt), sequence(loop, prompt)
    decides.add([first])
    decides.admit()
    before = list(first.blocks)
    decides.finish([first])
    assert decides.free_blocks == 100, "what is kept can be had"
    decides.add([second])
    known = decides.admit_known()
    assert (known.sequences, decides.running, decides.admit()) == ([second], [second], [])
    full = len(prompt) // BLOCK
    assert second.blocks[:full] == before[:full]
    assert len(set(second.blocks) - set(before)) == own_blocks
    assert known.copies == [(before[-1], second.blocks[-1])] * own_blocks
    assert (second.state, second.cached, second.last_token) == (State.RUNNING, len(prompt), ord(prompt[-1]))
    assert decides.reserve(1) is False, "its last token has its place"
    decides.finish([second])
    assert (decides.free_blocks, second.cached) == (100, 0)


def test_kept_prompts_give_way_to_sequences_the_oldest_first(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(blocks=4, kept=8)
    for prompt in ("aaaa", "bbbb", "cccc", "aaaa"):  # the last one is known, and used again
        entry = sequence(loop, prompt)
        decides.add([entry])
        decides.admit_known()
        decides.admit()
        decides.finish([entry])
    decides.add([sequence(loop, "dddddddd")])
    decides.admit()
    known = [sequence(loop, prompt) for prompt in ("aaaa", "bbbb", "cccc")]
    decides.add(known)
    assert text(decides.admit_known().sequences) == "aaaa cccc", "one block was free, and one was missing"
    decides.forget_prompts()
    assert decides.free_blocks == 0


def test_only_as_many_prompts_are_kept_and_none_after_the_weights_have_changed(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(kept=2)
    prompts = ("aaaa", "bbbb", "cccc")
    decides.add(sequence(loop, prompt) for prompt in prompts)
    decides.admit()
    decides.add(sequence(loop, prompt) for prompt in prompts)
    assert text(decides.admit_known().sequences) == "bbbb cccc"
    decides.forget_prompts()
    decides.add([sequence(loop, "cccc")])
    assert decides.admit_known() == ([], [])
    decides.clear(with_waiting=True)
    assert decides.free_blocks == 100


def test_known_prompts_overtake_those_that_gather_and_take_no_row_from_them(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(rows=4, kept=8)
    decides.add([sequence(loop, "aaaa")])
    decides.admit()
    decides.add(sequence(loop, prompt) for prompt in ("bbbb", "aaaa", "cccc", "aaaa"))
    assert text(decides.admit_known().sequences) == "aaaa"
    assert (text(decides.running), text(decides.waiting)) == ("aaaa aaaa", "bbbb cccc aaaa")


@pytest.mark.parametrize(("running", "chunks"), [(4, 0), (15, 0), (16, 1), (40, 2)])
def test_a_known_prompt_waits_until_it_has_lost_what_a_change_of_rows_costs(
    running: int, chunks: int, loop: asyncio.AbstractEventLoop
) -> None:
    """A quarter of a step of those that run; chunks of four steps are launched while one flies."""
    decides = scheduler(1000, rows=64, prefill=10_000, kept=100)
    entries = [sequence(loop, f"{index:04}", 1000) for index in range(running)]
    decides.add(entries)
    decides.admit()
    decides.add([sequence(loop, "0000")])
    for _ in range(chunks):
        assert decides.steps_ahead(4, 4) == 4
        decides.pass_steps(4)
    assert decides.steps_ahead(4, 4) == 0
    decides.admit_known()
    assert decides.steps_ahead(4, 4) == 4


def test_a_preempted_sequence_is_read_again_with_what_it_has_sampled(loop: asyncio.AbstractEventLoop) -> None:
    decides = scheduler(blocks=2, kept=8)
    entries = [sequence(loop, prompt) for prompt in ("aaaa", "bbbb")]
    decides.add(entries)
    decides.admit()
    write(entries, 1)
    assert decides.reserve(1)
    assert [entry.state for entry in entries] == [State.RUNNING, State.PREEMPTED]
    assert decides.admit_known().sequences == []
    decides.finish(entries[:1])
    (again,) = decides.admit()
    assert again.past == (*entries[1].request.prompt, 120)


def test_prefills_of_similar_length_are_batched_together() -> None:
    pasts = [(0,) * length for length in (30, 4, 5, 28, 3)]
    batches = list(prefill_batches([Prefill(past, []) for past in pasts], max_tokens=60))
    assert [[len(each.past) for each in batch] for batch in batches] == [[3, 4, 5], [28, 30]]
