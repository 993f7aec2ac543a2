"""Which sequences run: admits those that wait, shares common prefixes, allocates and frees blocks, preempts.

Pure bookkeeping without torch: engines execute what it decides.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from clotho_trainer.inference.core.block_manager import BlockManager
from clotho_trainer.inference.core.prompt_cache import PromptCache
from clotho_trainer.inference.core.sequences import Sequence, State

_LONGEST_WAIT = 32  # steps that a sequence with a place waits for others
_TURN = 0.25  # steps that the device idles when rows change


@dataclass(frozen=True, slots=True)
class Prefill:
    """Admitted sequences with the same past: it is read once, for the first of them."""

    past: tuple[int, ...]
    sequences: list[Sequence]

    def block_copies(self, block_size: int) -> list[tuple[int, int]]:
        """(source, target): the last block of the past is each sequence's own where it is partly filled."""
        if len(self.past) % block_size == 0:
            return []
        first, *others = self.sequences
        return [(first.blocks[-1], other.blocks[-1]) for other in others]


class Known(NamedTuple):
    """Admitted sequences whose prompts were read before, and (source, target) of blocks to copy first."""

    sequences: list[Sequence]
    copies: list[tuple[int, int]]


class Scheduler:
    """`watermark`: blocks kept free for each running sequence when another is admitted. `kept_prompts`: at most, for
    engines that admit known ones."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_running: int,
        max_prefill_tokens: int,
        watermark: float = 0.0,
        kept_prompts: int = 0,
    ) -> None:
        self.max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._blocks = blocks
        self._max_prefill_tokens = max_prefill_tokens
        self._watermark = watermark
        self._prompts = PromptCache(blocks, kept_prompts)
        self._lost = self._waited = 0  # rows times steps, and steps, since there was a place for one that waits
        self._lost_by_known = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def free_blocks(self) -> int:
        """Those of kept prompts can be had, too."""
        return self._blocks.free_count + self._prompts.spare

    def add(self, sequences: Iterable[Sequence]) -> None:
        self.waiting.extend(sequences)

    def _idle(self) -> tuple[int, int]:
        """Rows for those that wait: whose prompts have to be read, and are known."""
        with_place = list(islice(self.waiting, max(self.max_running - len(self.running), 0)))
        known = sum(self._is_known(sequence) for sequence in with_place)
        return len(with_place) - known, known

    def pass_steps(self, steps: int) -> None:
        """They are taken without those that wait."""
        unread, known = self._idle()
        self._lost += steps * unread
        self._lost_by_known += steps * known
        self._waited = self._waited + steps if unread else 0

    def gathers(self, steps: int) -> bool:
        """Whether those that wait should do so for as many steps more, and be joined by others: reading prompts stops
        all that run for more than a step, so they wait until they have lost as much themselves."""
        return self._can_gather(steps, self._idle()[0])

    def admit_known(self) -> Known:
        """In the order of arrival. They overtake those that wait for others, but take no row from them."""
        self._lost_by_known = 0
        admitted, passed, copies = list[Sequence](), deque[Sequence](), list[tuple[int, int]]()
        held: list[int] = []  # what is copied has to stay until then
        while self.waiting and len(self.running) + len(passed) + len(admitted) < self.max_running:
            sequence = self.waiting.popleft()
            if sequence.is_cancelled or not self._is_known(sequence):
                passed.append(sequence)
                continue
            length, blocks = len(sequence.past), self._prompts.take(sequence.past)
            held += blocks
            if not self._share_past(sequence, length, blocks, self._kept_free(len(admitted))):
                self.waiting.appendleft(sequence)
                break
            if sequence.blocks[-1] != blocks[-1]:
                copies.append((blocks[-1], sequence.blocks[-1]))
            sequence.state, sequence.cached = State.RUNNING, length
            admitted.append(sequence)
        self._blocks.free(held)
        self.waiting.extendleft(reversed(passed))
        self.running += admitted
        return Known(admitted, copies)

    def forget_prompts(self) -> None:
        """The weights have changed."""
        self._prompts.clear()

    def admit(self) -> list[Prefill]:
        """In the order of arrival, while there are rows and blocks."""
        self._lost = self._waited = 0
        prefills: dict[tuple[int, ...], Prefill] = {}
        admitted = tokens = 0
        while self.waiting and len(self.running) + admitted < self.max_running and tokens < self._max_prefill_tokens:
            sequence = self.waiting[0]
            if sequence.is_cancelled:
                self._drop(self.waiting.popleft())
                continue
            past = sequence.past
            prefill = prefills.get(past)
            if not self._allocate_past(sequence, len(past), prefill):
                break
            self.waiting.popleft()
            sequence.state = State.RUNNING
            admitted += 1
            if prefill is None:
                prefills[past] = Prefill(past, [sequence])
                tokens += len(past)
                if not sequence.tokens:
                    self._prompts.keep(past, sequence.blocks)
            else:
                prefill.sequences.append(sequence)
        for prefill in prefills.values():
            self.running += prefill.sequences
        return list(prefills.values())

    def reserve(self, steps: int) -> bool:
        """Blocks for the next `steps` tokens of every running sequence; whether any block table changed.

        When no block is free the youngest sequence is preempted: its past is read again once it is re-admitted.
        """
        has_changed = False
        for sequence in tuple(self.running):
            missing = self._missing(sequence, steps)
            if not missing or sequence.state is not State.RUNNING:
                continue
            has_changed = True
            while not self._prompts.make_room(missing) and sequence.state is State.RUNNING:
                self._preempt_youngest()
            if sequence.state is State.RUNNING:
                sequence.blocks += self._blocks.allocate(missing)
        return has_changed

    def steps_ahead(self, flying: int, most: int) -> int:
        """How many steps the running sequences can take behind `flying` ones whose tokens are not known yet; 0 where a
        sequence is to be admitted, removed or preempted first. A limit that one reaches in flight is no reason: its
        row idles a little, and those that wait are read in fewer, larger passes."""
        steps = min(most, max(sequence.room for sequence in self.running) - flying)
        admits = bool(self.waiting) and self._has_place_for(self.waiting[0]) and self._is_due(steps)
        if steps <= 0 or admits or any(sequence.is_cancelled for sequence in self.running):
            return 0
        missing = sum(self._missing(sequence, flying + steps) for sequence in self.running)
        return steps if self._prompts.make_room(missing) else 0

    def finish(self, sequences: Iterable[Sequence]) -> bool:
        """Free their blocks; whether there were any."""
        has_changed = False
        for sequence in sequences:
            has_changed = True
            self._drop(sequence)
        if has_changed:
            self.running = [sequence for sequence in self.running if sequence.state is State.RUNNING]
        return has_changed

    def finish_cancelled(self) -> bool:
        return self.finish([sequence for sequence in self.running if sequence.is_cancelled])

    def clear(self, *, with_waiting: bool) -> list[Sequence]:
        """Finish all that run, and those that wait on request; the sequences that were given up."""
        lost = list(self.running)
        if with_waiting:
            lost += self.waiting
            self.waiting.clear()
        self.finish(lost)
        self.forget_prompts()
        return lost

    def _is_known(self, sequence: Sequence) -> bool:
        return not sequence.tokens and sequence.request.prompt in self._prompts

    def _is_due(self, steps: int) -> bool:
        """Whether those that wait have lost more than their admission costs those that run."""
        unread, known = self._idle()
        by_known = self._lost_by_known + steps * known
        return not self._can_gather(steps, unread) or by_known > _TURN * len(self.running)

    def _can_gather(self, steps: int, unread: int) -> bool:
        return self._lost + steps * unread <= len(self.running) and self._waited < _LONGEST_WAIT

    def _missing(self, sequence: Sequence, steps: int) -> int:
        """Blocks for its next `steps` tokens that it does not have yet."""
        last = min(sequence.position + steps - 1, sequence.last_position)
        return max(0, self._blocks.needed(last + 1) - len(sequence.blocks))

    def _has_place_for(self, sequence: Sequence) -> bool:
        return len(self.running) < self.max_running and self._has_blocks_for(sequence.position + 1)

    def _has_blocks_for(self, length: int) -> bool:
        return self._prompts.make_room(self._blocks.needed(length) + self._kept_free())

    def _kept_free(self, admitted: int = 0) -> int:
        return int((len(self.running) + admitted) * self._watermark)

    def _allocate_past(self, sequence: Sequence, length: int, shared: Prefill | None) -> bool:
        if shared is not None:
            return self._share_past(sequence, length, shared.sequences[0].blocks)
        if not self._has_blocks_for(length):
            return False
        sequence.blocks = self._blocks.allocate(self._blocks.needed(length))
        return True

    def _share_past(self, sequence: Sequence, length: int, blocks: Many[int], kept_free: int = 0) -> bool:
        """Full blocks of a common past are shared; the last, partly filled one is each sequence's own."""
        full = length // self._blocks.block_size
        own = self._blocks.needed(length) - full
        if not self._prompts.make_room(own + kept_free):
            return False
        self._blocks.share(blocks[:full])
        sequence.blocks = [*blocks[:full], *self._blocks.allocate(own)]
        return True

    def _preempt_youngest(self) -> None:
        sequence = self.running.pop()
        self._release(sequence, State.PREEMPTED)
        self.waiting.appendleft(sequence)

    def _drop(self, sequence: Sequence) -> None:
        self._release(sequence, State.FINISHED)

    def _release(self, sequence: Sequence, state: State) -> None:
        sequence.state = state
        self._blocks.free(sequence.blocks)
        sequence.blocks, sequence.cached = [], 0


def prefill_batches(prefills: Iterable[Prefill], max_tokens: int) -> Iterator[list[Prefill]]:
    """Pasts of like length together, so that little is padded."""
    batch: list[Prefill] = []
    for prefill in sorted(prefills, key=lambda entry: len(entry.past)):
        if batch and (len(batch) + 1) * len(prefill.past) > max_tokens:
            yield batch
            batch = []
        batch.append(prefill)
    if batch:
        yield batch
