"""Continuous batching over the decoder: who is admitted, whose prompt is shared, who gives way when memory is short."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from clotho_trainer.inference.core.engine import EngineBusyError
from clotho_trainer.inference.core.live_engine import LiveEngine
from clotho_trainer.inference.core.sampler import Sampler
from clotho_trainer.inference.core.sequences import Sample
from clotho_trainer.inference.paged.block_manager import NoPagesLeftError, Pages, pages_for
from clotho_trainer.inference.paged.decoder import STEPS, Decoder, Row
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

PAGE_SIZE = 128
_PREFILL_TOKENS = 16_384  # read in one pass when many prompts wait


@dataclass(eq=False)
class _Running:
    """A sample that has a row, and the pages that hold its past."""

    sample: Sample
    seed: int
    pages: list[int] = field(default_factory=list)

    @property
    def past(self) -> tuple[int, ...]:
        return (*self.sample.request.prompt, *self.sample.tokens)

    @property
    def position(self) -> int:
        return len(self.sample.request.prompt) + len(self.sample.tokens) - 1

    @property
    def last_position(self) -> int:
        return len(self.sample.request.prompt) + self.sample.limit - 2

    @property
    def needs_care(self) -> bool:
        """The kernel samples from the whole distribution; whoever wants a part of it is drawn for one by one."""
        sampling = self.sample.request.sampling
        return bool(sampling.top_p < 1.0 or sampling.top_k or len(self.sample.tokens) < sampling.min_tokens)

    def row(self) -> Row:
        temperature = self.sample.request.sampling.temperature
        return Row(self.sample.tokens[-1], self.position, self.last_position, temperature, self.seed, self.pages)


class FastEngine(LiveEngine):
    """The decoder's thread alone touches `_rows`, `_pages` and the device."""

    def __init__(
        self,
        live: LiveWeights,
        weights: PolicyWeights,
        end_tokens: frozenset[int],
        *,
        pages: int,
        max_rows: int,
        page_size: int = PAGE_SIZE,
        seed: int = 0,
        drains: bool = False,
    ) -> None:
        context = min(len(weights.cos), (pages - 1) * page_size)
        super().__init__(live, end_tokens, context=context, drains=drains)
        live.modules_decode = False
        self._weights = weights
        self._page_size = page_size
        self._max_rows = max_rows
        self._pages = Pages(pages)
        self._decoder = Decoder(weights, pages=pages, page_size=page_size, max_rows=max_rows, seed=seed)
        self._sampler = Sampler(live.device, end_tokens, seed)
        self._rows: list[_Running] = []
        self._changed = False
        self._seeds = seed << 20
        self._known_version: int | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._prepare)
        await super().start()

    def _prepare(self) -> None:
        began = time.monotonic()
        with self._live.decoding():
            self._enter()
            self._decoder.capture()
        log.info("the fast engine is ready after %.1f s", time.monotonic() - began)

    def _enter(self) -> None:
        if self._known_version != self._live.version:
            self._weights.refresh()
            self._known_version = self._live.version

    def _advance(self) -> None:
        try:
            self._take_turn()
        except torch.OutOfMemoryError:
            log.warning("out of GPU memory while decoding: %d sequences are given up", len(self._rows))
            self._abandon(EngineBusyError("out of GPU memory while decoding; ask again"))
            torch.cuda.empty_cache()

    def _take_turn(self) -> None:
        self._leave(row for row in self._rows if row.sample.answer.is_unwanted)
        if self._may_admit and (newcomers := self._admit()):
            self._begin(newcomers)
        if not self._rows:
            return
        is_careful = any(row.needs_care for row in self._rows)
        steps = 1 if is_careful else min(STEPS, max(row.sample.room for row in self._rows))
        self._make_room(steps)
        if self._changed:
            self._decoder.load([row.row() for row in self._rows])
            self._changed = False
        if is_careful:
            self._draw(self._rows, self._decoder.logits(len(self._rows)))
        else:
            self._write(self._rows, *self._decoder.advance(len(self._rows), steps))

    def _admit(self) -> list[_Running]:
        """In the order of arrival, while there are rows and pages. Everyone gets the pages of its past."""
        newcomers: list[_Running] = []
        leaders: dict[tuple[int, ...], _Running] = {}
        tokens = 0
        with self._work:
            while self._waiting and len(self._rows) + len(newcomers) < self._max_rows and tokens < _PREFILL_TOKENS:
                sample = self._waiting[0]
                if sample.answer.is_unwanted:
                    self._waiting.popleft()
                    continue
                running = _Running(sample, self._seeds)
                past = running.past
                try:
                    running.pages = self._pages_for_past(len(past), leaders.get(past))
                except NoPagesLeftError:
                    break
                self._waiting.popleft()
                self._seeds += 1
                newcomers.append(running)
                if leaders.setdefault(past, running) is running:
                    tokens += len(past)
        return newcomers

    def _pages_for_past(self, length: int, leader: _Running | None) -> list[int]:
        """A common prompt's full pages are shared; the last, half-full one is everyone's own."""
        spare = len(self._rows) // 4  # for those that are running already
        if leader is None:
            needed = pages_for(length, self._page_size)
            if self._pages.free < needed + spare and self._rows:
                raise NoPagesLeftError
            return self._pages.take(needed)
        full = length // self._page_size
        own = self._pages.take(pages_for(length, self._page_size) - full)
        self._pages.share(leader.pages[:full])
        return [*leader.pages[:full], *own]

    def _begin(self, newcomers: list[_Running]) -> None:
        """Read every different past once, and draw the first token of each."""
        groups: dict[tuple[int, ...], list[_Running]] = defaultdict(list)
        for running in newcomers:
            groups[running.past].append(running)
        self._rows += newcomers
        self._active = [row.sample for row in self._rows]
        self._changed = True
        for pasts in _batches(sorted(groups, key=len)):
            logits = self._decoder.read(pasts, [groups[past][0].pages for past in pasts])
            copies = [
                (groups[past][0].pages[-1], follower.pages[-1])
                for past in pasts
                for follower in groups[past][1:]
                if len(past) % self._page_size
            ]
            if copies:
                sources, targets = zip(*copies, strict=True)
                self._decoder.copy_pages(sources, targets)
            members = [running for past in pasts for running in groups[past]]
            repeats = torch.tensor([len(groups[past]) for past in pasts], device=logits.device)
            self._draw(members, logits.repeat_interleave(repeats, dim=0, output_size=len(members)))

    def _draw(self, rows: list[_Running], logits: torch.Tensor) -> None:
        wishes = [(row.sample.request.sampling, len(row.sample.tokens)) for row in rows]
        _, tokens, logprobs = self._sampler.draw(logits, wishes)
        self._changed = True
        self._write(rows, [[token] for token in tokens], [[logprob] for logprob in logprobs])

    def _write(self, rows: list[_Running], tokens: list[list[int]], logprobs: list[list[float]]) -> None:
        done = []
        for row, drawn, values in zip(rows, tokens, logprobs, strict=True):
            reason = self._scribe.write(row.sample, drawn, values, self._live.version)
            if reason is not None:
                done.append((row, self._scribe.completion(row.sample, reason)))
        self._leave(row for row, _ in done)
        for row, completion in done:
            row.sample.answer.add(completion)

    def _leave(self, rows: Iterable[_Running]) -> None:
        leaving = set(rows)
        if leaving:
            self._rows = [row for row in self._rows if row not in leaving]
            self._changed = True
            for row in leaving:
                self._pages.give_back(row.pages)
        self._active = [row.sample for row in self._rows]

    def _make_room(self, steps: int) -> None:
        """Pages for the next steps. When there are none left, the youngest gives way and is read again later."""
        for row in list(self._rows):
            if row not in self._rows:
                continue
            needed = pages_for(min(row.position + steps - 1, row.last_position) + 1, self._page_size) - len(row.pages)
            while needed > self._pages.free and row in self._rows:
                self._send_back(self._rows[-1])
            if needed > 0 and row in self._rows:
                row.pages += self._pages.take(needed)
                self._changed = True

    def _send_back(self, row: _Running) -> None:
        self._leave([row])
        with self._work:
            self._waiting.appendleft(row.sample)

    def _clear(self) -> None:
        self._leave(list(self._rows))


def _batches(pasts: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Of like length together, so that little is padded."""
    batch: list[tuple[int, ...]] = []
    for past in pasts:
        if batch and (len(batch) + 1) * len(past) > _PREFILL_TOKENS:
            yield batch
            batch = []
        batch.append(past)
    if batch:
        yield batch
