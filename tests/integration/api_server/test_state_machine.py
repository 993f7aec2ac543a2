"""Any order of register, enqueue, lease, acknowledge, crash, restart: nothing lost, nothing trained twice, FIFO."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clotho_api_server.parsing.groups import Group
from clotho_api_server.refusals import ConflictError
from clotho_api_server.state.ledger import Ledger
from clotho_api_server.state.outcomes import Leased
from clotho_api_server.state.schema import open_database
from clotho_api_server.state.segments import FOLDER_NAME, SEGMENT_BYTES, Place, Segments
from clotho_api_server.state.shares import Limits
from clotho_contract.api_protocol import Register, RegisterEnv

T = TypeVar("T")
LIMITS = Limits(max_queue_bytes=10**9, max_off_policy_batches=10**6, lease_seconds=10.0)
GROUP_SIZE = 2
ENVIRONMENTS = st.sampled_from([0, 1])


def trainer(batch_size: int, step: int) -> Register:
    return Register("g", "p", batch_size, 0, "/c", 5, step, 1000)


class Runs(RuleBasedStateMachine):
    """The model is a handful of sets; the ledger works on real files that are closed and opened again. Names of leases
    are random: they are drawn in the order of their making, so that an example can be repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.numbers = itertools.count()
        self.clock = 0.0
        self.step = 0
        self.sent: dict[int, int] = {}  # number of the group -> its environment
        self.keys: dict[str, list[Group]] = {}
        self.small_files = patch(f"{Segments.__module__}.SEGMENT_BYTES", min(SEGMENT_BYTES, 8))
        self.small_files.start()
        self.delivered: set[int] = set()
        self.trained: dict[int, int] = {}  # number -> step, as far as no rollback undid it
        self.in_checkpoint: set[int] = set()
        self.leases: dict[str, list[int]] = {}
        self.unsent: set[str] = set()  # leases whose batch may not have reached the trainer
        self.uncertain: dict[str, list[int]] = {}  # those of them that a crash of the server gave back
        self.open()

    def open(self) -> None:
        self.database = open_database(Path(self.folder.name))
        self.database.execute("PRAGMA synchronous = OFF")  # these crashes are of the process, not of the machine
        self.segments = Segments(Path(self.folder.name))
        self.ledger = Ledger(self.database, self.segments, LIMITS)
        self.commit(lambda: self.ledger.resume(self.clock))

    def commit(self, change: Callable[[], T]) -> T:
        self.database.execute("BEGIN IMMEDIATE")
        try:
            return change()
        finally:
            self.ledger.flush()
            self.database.execute("COMMIT")
            self.ledger.tidy()

    def numbers_in(self, leased: Leased) -> list[int]:
        query = "SELECT segment, offset, bytes FROM groups WHERE batch = ? ORDER BY id"
        places = self.database.execute(query, (leased.lease.batch,)).fetchall()
        return [json.loads(self.segments.read(Place(*place)) or b"") for place in places]

    def new_group(self, env_id: int) -> Group:
        number = next(self.numbers)
        return Group(env_id, GROUP_SIZE, None, str(number).encode())

    @initialize()
    def begin(self) -> None:
        self.commit(lambda: self.ledger.register(trainer(4, 0)))
        for name in ("a", "b"):
            asked = RegisterEnv(100, name, 1.0, GROUP_SIZE)
            self.commit(lambda asked=asked: self.ledger.register_environment(asked))

    @rule(env_id=ENVIRONMENTS, count=st.integers(1, 4))
    def enqueue(self, env_id: int, count: int) -> None:
        groups = [self.new_group(env_id) for _ in range(count)]
        key = f"groups from {groups[0].body!r}"
        self.commit(lambda: self.ledger.enqueue(groups, heeds_429=False, key=key))
        self.keys[key] = groups
        self.sent |= {json.loads(group.body): env_id for group in groups}

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def enqueue_again(self, data: st.DataObject) -> None:
        """The answer got lost, whatever has happened since."""
        key = data.draw(st.sampled_from(sorted(self.keys)))
        groups = self.keys[key]
        again = self.commit(lambda: self.ledger.enqueue(groups, heeds_429=False, key=key))
        assert (again.receipt.groups, again.accepted) == (len(groups), ())

    @rule(sent=st.booleans())
    def lease(self, sent: bool) -> None:
        leased = self.commit(lambda: self.ledger.lease(self.clock))
        if leased is None:
            return
        numbers = self.numbers_in(leased)
        assert not set(numbers) & set(self.trained), "a trained group came again"
        assert not any(set(numbers) & set(held) for held in self.leases.values()), "a group is in two hands"
        self.check_first_in_first_out(numbers)
        for lease_id in [held for held, uncertain in self.uncertain.items() if set(uncertain) & set(numbers)]:
            del self.uncertain[lease_id]
            self.refuses(lease_id)
        self.leases[leased.lease.id] = numbers
        if sent:
            self.commit(lambda: self.ledger.mark_sent(leased.lease.id))
        else:
            self.unsent.add(leased.lease.id)

    def check_first_in_first_out(self, numbers: list[int]) -> None:
        for number in set(numbers) - self.delivered:
            earlier = {n for n, env_id in self.sent.items() if env_id == self.sent[number] and n < number}
            assert earlier <= self.delivered | set(numbers)
        self.delivered |= set(numbers)

    @precondition(lambda self: self.leases or self.uncertain)
    @rule(data=st.data(), twice=st.booleans())
    def acknowledge(self, data: st.DataObject, twice: bool) -> None:
        lease_id = data.draw(st.sampled_from([*self.leases, *self.uncertain]))
        self.step += 1
        for _ in range(2 if twice else 1):
            assert self.commit(lambda: self.ledger.acknowledge(lease_id, self.step)).step == self.step
        held = self.leases if lease_id in self.leases else self.uncertain
        self.trained |= dict.fromkeys(held.pop(lease_id), self.step)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from([*self.leases]))
        self.commit(lambda: self.ledger.mark_sent(lease_id))
        self.commit(lambda: self.ledger.release(lease_id))
        del self.leases[lease_id]
        self.refuses(lease_id)

    @rule()
    def time_passes(self) -> None:
        for lease_id in self.leases:
            self.commit(lambda lease_id=lease_id: self.ledger.mark_sent(lease_id))
        self.clock += 100.0
        assert self.commit(lambda: self.ledger.expire(self.clock)) == len(self.leases)
        for lease_id in self.leases:
            self.refuses(lease_id)
        self.leases.clear()

    def refuses(self, lease_id: str) -> None:
        with pytest.raises(ConflictError):
            self.commit(lambda: self.ledger.acknowledge(lease_id, self.step + 1))

    @rule(back=st.integers(0, 3))
    def checkpoint(self, back: int) -> None:
        step = max(0, self.step - back)
        self.commit(lambda: self.ledger.checkpointed(step))
        self.in_checkpoint |= {number for number, at in self.trained.items() if at <= step}

    @rule(back=st.integers(0, 3), batch_size=st.sampled_from([2, 4, 8]))
    def trainer_starts_again(self, back: int, batch_size: int) -> None:
        step = max(0, self.step - back)
        self.commit(lambda: self.ledger.register(trainer(batch_size, step)))
        for lease_id in [*self.leases, *self.uncertain]:
            self.refuses(lease_id)
        self.leases.clear()
        self.uncertain.clear()
        undone = {n for n, at in self.trained.items() if at > step and n not in self.in_checkpoint}
        self.trained = {n: at for n, at in self.trained.items() if n not in undone}
        self.step = step

    @rule(env_id=ENVIRONMENTS)
    def server_crashes_and_restarts(self, env_id: int) -> None:
        """What was not committed never happened; whoever holds a batch can still acknowledge it."""
        groups = [self.new_group(env_id)]
        self.database.execute("BEGIN IMMEDIATE")
        self.ledger.enqueue(groups, heeds_429=False, key="never committed")
        self.ledger.lease(self.clock)
        self.database.close()
        self.segments.close()
        for lease_id in [held for held in self.leases if held in self.unsent]:
            self.uncertain[lease_id] = self.leases.pop(lease_id)
        self.open()

    @invariant()
    def the_counts_in_memory_are_those_on_disk(self) -> None:
        before = self.ledger.snapshot()
        self.ledger.load()
        assert self.ledger.snapshot() == before

    @invariant()
    def only_files_that_are_needed_are_kept(self) -> None:
        needed = {str(number) for (number,) in self.database.execute("SELECT segment FROM groups")}
        kept = {path.name for path in (Path(self.folder.name) / FOLDER_NAME).iterdir()}
        assert needed <= kept
        assert len(kept - needed) <= 1  # the one being written

    @invariant()
    def the_step_is_the_trainers(self) -> None:
        assert self.ledger.snapshot().step == self.step

    def teardown(self) -> None:
        """Whatever is not trained can still be trained, once."""
        self.commit(lambda: self.ledger.register(trainer(GROUP_SIZE, self.step)))
        left: list[int] = []
        while (leased := self.commit(lambda: self.ledger.lease(self.clock))) is not None:
            left += self.numbers_in(leased)
        assert sorted([*left, *self.trained]) == sorted(self.sent)
        self.database.close()
        self.segments.close()
        self.small_files.stop()
        self.folder.cleanup()


TestRuns = Runs.TestCase
TestRuns.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
