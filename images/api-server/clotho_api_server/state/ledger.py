"""The run's state and every change that it can undergo. Synchronous; the journal wraps each change in a transaction."""

import secrets
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from clotho_api_server.parsing.groups import Group
from clotho_api_server.refusals import ConflictError, FullError, InvalidError, UnknownError
from clotho_api_server.state.batching import EnvId, Waiting, choose, complete_pack, shortage
from clotho_api_server.state.outcomes import Accepted, Enqueued, Lease, Leased, Receipt, Trained
from clotho_api_server.state.segments import Segments
from clotho_api_server.state.shares import Environment, Limits, Snapshot, is_needed
from clotho_api_server.state.tally import QueueTally
from clotho_contract.api_protocol import EnvRegistered, Register, RegisterEnv
from clotho_contract.trajectory import divides_batch

LEASES_REMEMBERED = 1000  # an ack whose answer got lost may be repeated this many batches later
RECEIPTS_REMEMBERED = 10_000  # and so may groups whose answer got lost, if they came with a key
RETRY_AFTER_SECONDS = 5


class Ledger:
    """Owns the writing connection. A method either refuses before it changes anything, or succeeds.

    Call `flush` before a transaction is committed and `tidy` after; when it failed call `load`: the database is the
    truth, the counts here only mirror it.
    """

    def __init__(self, connection: sqlite3.Connection, segments: Segments, limits: Limits) -> None:
        self._db = connection
        self._segments = segments
        self._limits = limits
        self._in_segment: Counter[int] = Counter()  # groups by the file that holds them
        self._deadlines: dict[str, float] = {}  # not on disk: a restart gives every holder its full time again
        self.load()

    def flush(self) -> None:
        self._segments.flush()

    def tidy(self) -> None:
        self._segments.committed(+self._in_segment)  # without those that have become empty

    def load(self) -> None:
        self._segments.undo()
        self._in_segment.clear()
        self._in_segment.update(dict(self._db.execute("SELECT segment, count(*) FROM groups GROUP BY segment")))
        facts = dict(self._db.execute("SELECT name, value FROM facts"))
        self._registration = (
            msgspec.json.decode(facts["registration"], type=Register) if "registration" in facts else None
        )
        self._started = bool(int(facts.get("started", 0)))
        self._step = int(facts.get("step", 0))
        self._environments = {
            row[0]: Environment(row[0], row[1], msgspec.json.decode(row[2], type=RegisterEnv), bool(row[3]))
            for row in self._db.execute("SELECT id, name, asked, connected FROM environments")
        }
        self._queue = QueueTally()
        counts = "SELECT state, env, size, count(*), sum(bytes) FROM groups WHERE state IN (?, ?) GROUP BY 1, 2, 3"
        for state, env_id, size, count, total in self._db.execute(counts, ("queued", "buffered")):
            self._queue.bytes += total
            if state == "queued":
                self._queue.add(env_id, size, count)
        rows = self._db.execute("SELECT lease, id, groups, sequences, bytes FROM batches WHERE state = 'leased'")
        self._leases = {row[0]: Lease(*row) for row in rows}
        sums = "SELECT count(*), ifnull(sum(groups), 0), ifnull(sum(sequences), 0), ifnull(sum(bytes), 0)"
        self._returned = Counter[str]()
        row = self._db.execute(f"{sums} FROM batches WHERE state = 'returned'").fetchone()
        self._returned.update(batches=row[0], groups=row[1], sequences=row[2], bytes=row[3])
        self._retained_bytes: int = self._db.execute(f"{sums} FROM batches WHERE state = 'trained'").fetchone()[3]

    def snapshot(self) -> Snapshot:
        return Snapshot(
            registration=self._registration,
            started=self._started,
            step=self._step,
            queued=self._queue.copy(),
            queue_groups=self._queue.groups + self._returned["groups"],
            queue_bytes=self._queue.bytes + self._returned["bytes"],
            returned_batches=self._returned["batches"],
            returned_groups=self._returned["groups"],
            returned_sequences=self._returned["sequences"],
            leased_batches=len(self._leases),
            retained_bytes=self._retained_bytes,
            environments=self._environments,
        )

    # -- trainer and environments come and go

    def resume(self, now: float) -> None:
        """After a restart: holders of leases could not renew them, and interrupted responses have no reader."""
        for (lease,) in self._db.execute("SELECT lease FROM batches WHERE state = 'leased' AND NOT sent").fetchall():
            self.release(lease)
        self.forget_delivered()
        for lease in list(self._leases):
            self.renew(lease, now)

    def register(self, request: Register) -> int:
        """A trainer starts, or starts again from a checkpoint: what was trained after that checkpoint waits again."""
        for env in self._environments.values():
            if env.connected:
                check_divides("batch_size", env.asked.group_size, request.batch_size, f" of environment {env.name}")
        if request.discards_state:
            self._delete_all("groups", "batches", "receipts")
        self._check_step("starting_step", request.starting_step)
        resized = self._registration is not None and self._registration.batch_size != request.batch_size
        for lease in list(self._leases):
            self.release(lease)
        if request.starting_step < self._step:
            self._return_trained("NOT plain AND step > ?", request.starting_step)
        self._db.execute("UPDATE batches SET sent = TRUE WHERE state = 'returned'")  # not to be reclaimed
        if resized:
            self._dissolve_returned()
        self._registration = request
        self.note("registration", msgspec.json.encode(request))
        self._set_step(request.starting_step)
        return uuid.uuid4().int

    def start(self) -> None:
        """The trainer has asked for its first batch; environments may register from now on."""
        if self._registration is None:
            raise ConflictError("no trainer is registered: POST /register first")
        if not self._started:
            self._started = True
            self.note("started", 1)

    def register_environment(self, request: RegisterEnv) -> EnvRegistered:
        if self._registration is None:
            raise ConflictError("no trainer is registered: POST /register first")
        check_divides("group_size", request.group_size, self._registration.batch_size)
        self._segments.disk.check_room(0)  # environments may register without end
        namesakes = sum(env.asked.desired_name == request.desired_name for env in self._environments.values())
        env = Environment(len(self._environments), f"{request.desired_name}_{namesakes}", request, connected=True)
        self._db.execute(
            "INSERT INTO environments (id, name, asked, connected) VALUES (?, ?, ?, 1)",
            (env.id, env.name, msgspec.json.encode(request)),
        )
        self._environments = {**self._environments, env.id: env}
        return EnvRegistered(
            env_id=env.id,
            wandb_name=env.name,
            checkpoint_dir=self._registration.checkpoint_dir,
            starting_step=self._step,
            checkpoint_interval=self._registration.save_checkpoint_interval,
            num_steps=self._registration.num_steps,
        )

    def set_connected(self, env_id: int, connected: bool) -> None:
        env = self._environments.get(env_id)
        if env is None:
            raise UnknownError(f"environment {env_id} is not registered: POST /register-env first")
        if env.connected != connected:
            self._db.execute("UPDATE environments SET connected = ? WHERE id = ?", (connected, env_id))
            self._environments = {**self._environments, env_id: msgspec.structs.replace(env, connected=connected)}

    def reset(self) -> None:
        self._delete_all("groups", "batches", "receipts", "environments", "facts")

    # -- groups come in

    def enqueue(self, groups: Sequence[Group], *, heeds_429: bool, key: str | None = None) -> Enqueued:
        """All of them or none; and none when groups with this key have come before."""
        if (receipt := self._receipt(key)) is not None:
            return Enqueued(receipt, ())
        for group in groups:
            self._check_fits(group)
        self._check_room(groups, heeds_429=heeds_429)
        accepted = [self._add(group) for group in groups]
        counts = Counter(one.outcome for one in accepted)
        buffer_size = next((one.buffer_size for one in reversed(accepted) if one.outcome == "buffered"), 0)
        receipt = Receipt(len(groups), counts["buffered"], counts["stale"], buffer_size)
        if key is not None:
            self._remember(key, receipt)
        return Enqueued(receipt, accepted)

    def _receipt(self, key: str | None) -> Receipt | None:
        row = self._db.execute("SELECT receipt FROM receipts WHERE key = ?", (key,)).fetchone() if key else None
        return msgspec.json.decode(row[0], type=Receipt) if row else None

    def _remember(self, key: str, receipt: Receipt) -> None:
        row = (key, msgspec.json.encode(receipt))
        cursor = self._db.execute("INSERT INTO receipts (key, receipt) VALUES (?, ?)", row)
        self._db.execute("DELETE FROM receipts WHERE id <= ?", ((cursor.lastrowid or 0) - RECEIPTS_REMEMBERED,))

    def _check_fits(self, group: Group) -> None:
        if self._registration is None:
            return
        env = self._environments.get(group.env_id) if group.env_id is not None else None
        if env is None or group.size > env.asked.group_size:
            check_divides("tokens", group.size, self._registration.batch_size)
        elif group.size < env.asked.group_size and self._buffered(env.id)[0] >= env.asked.group_size:
            raise InvalidError(
                ("tokens",),
                f"{group.size} sequences where {env.name} registered {env.asked.group_size}, "
                f"and the parts sent before do not add up to {env.asked.group_size}",
            )

    def _check_room(self, groups: Sequence[Group], *, heeds_429: bool) -> None:
        state = self.snapshot()
        reached = self._limits.reached_by(state) if heeds_429 else self._limits.bytes_reached_by(state)
        if reached and not all(is_needed(state, group.env_id) for group in groups):
            raise queue_is_full(state, self._limits, heeds_429=heeds_429)
        self._segments.disk.check_room(sum(len(group.body) for group in groups))

    def _add(self, group: Group) -> Accepted:
        if self._is_stale(group.policy_version):
            return Accepted("stale")
        env = self._environments.get(group.env_id) if group.env_id is not None else None
        is_part = env is not None and group.size < env.asked.group_size
        place = self._segments.append(group.body)
        self._db.execute(
            "INSERT INTO groups (state, env, size, version, segment, offset, bytes) VALUES (?, ?, ?, ?, ?, ?, ?)",
            ("buffered" if is_part else "queued", group.env_id, group.size, group.policy_version, *place),
        )
        self._in_segment[place.segment] += 1
        self._queue.bytes += place.length
        if env is not None and is_part:
            return self._complete_from_buffer(env)
        self._queue.add(group.env_id, group.size)
        return Accepted("received")

    def _complete_from_buffer(self, env: Environment) -> Accepted:
        """Smaller parts wait until some of them make up one group of the registered size, as Atropos has it."""
        parts = self._db.execute(
            "SELECT id, size FROM groups WHERE state = 'buffered' AND env = ? ORDER BY id", (env.id,)
        )
        sizes = dict(parts.fetchall())
        for id in complete_pack(sizes.items(), env.asked.group_size):
            self._db.execute("UPDATE groups SET state = 'queued' WHERE id = ?", (id,))
            self._queue.add(env.id, sizes[id])
        return Accepted("buffered", self._buffered(env.id)[1])

    def _buffered(self, env_id: int) -> tuple[int, int]:
        """Parts in the buffer and their sequences."""
        query = "SELECT count(*), ifnull(sum(size), 0) FROM groups WHERE state = 'buffered' AND env = ?"
        count, sequences = self._db.execute(query, (env_id,)).fetchone()
        return count, sequences

    # -- batches go out

    def lease(self, now: float, *, plain: bool = False) -> Leased | None:
        """The oldest batch that came back, else a new one. `plain` marks those given out by GET /batch."""
        self.start()
        lease = self._lease_returned(plain) or self._lease_new(plain)
        if lease is None:
            return None
        self._leases[lease.id] = lease
        self.renew(lease.id, now)
        versions = self._db.execute(
            "SELECT version FROM groups WHERE batch = ? AND version IS NOT NULL", (lease.batch,)
        ).fetchall()
        return Leased(lease, self._step, [max(0, self._step - version) for (version,) in versions])

    def mark_sent(self, lease_id: str) -> None:
        """The whole batch has left. Until this is on disk, a restart hands the batch to the first client that asks."""
        self._db.execute("UPDATE batches SET sent = TRUE WHERE lease = ?", (lease_id,))

    def renew(self, lease_id: str, now: float) -> float:
        self._held(lease_id)
        self._deadlines[lease_id] = now + self._limits.lease_seconds
        return self._limits.lease_seconds

    def release(self, lease_id: str) -> None:
        lease = self._end(lease_id)
        self._db.execute("UPDATE batches SET state = 'returned' WHERE id = ?", (lease.batch,))
        self._count_returned(lease, +1)

    def expire(self, now: float) -> int:
        full_time = now + self._limits.lease_seconds
        overdue = [lease_id for lease_id in self._leases if self._deadlines.setdefault(lease_id, full_time) <= now]
        for lease_id in overdue:
            self.release(lease_id)
        return len(overdue)

    def acknowledge(self, lease_id: str, step: int) -> Trained:
        """The optimiser step that made `step` is done. A repeated acknowledgement is harmless."""
        done = "SELECT step FROM batches WHERE lease = ? AND state IN ('trained', 'done')"
        if again := self._db.execute(done, (lease_id,)).fetchone():
            return Trained(again[0], {}, {})
        self._held(lease_id)
        if step < self._step:
            raise InvalidError(
                ("step",), f"{step} is behind current_step {self._step}; to go back, register with that starting_step"
            )
        self._check_step("step", step)
        return self._train(lease_id, step)

    def deliver(self, lease_id: str) -> Trained:
        """A plain batch is all but sent: nothing acknowledges it, so it counts as trained and checkpointed."""
        self._held(lease_id)
        return self._train(lease_id, self._step + 1)

    def take_back(self, batch: int) -> None:
        """The client of a plain batch vanished before its last bytes."""
        if self._return_trained("id = ?", batch):
            self._set_step(self._step - 1)

    def forget_delivered(self) -> None:
        self._forget_trained("plain")

    def forget_retained(self) -> None:
        """The volume is full: trained groups are not kept for a trainer that goes back to an older checkpoint."""
        self._forget_trained("TRUE")

    def checkpointed(self, step: int) -> None:
        """A checkpoint holds everything up to this step: those groups are needed no more."""
        self._forget_trained("step <= ?", step)

    # -- inner workings

    def _delete_all(self, *tables: str) -> None:
        for table in tables:
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608
        self.load()

    def _held(self, lease_id: str) -> Lease:
        lease = self._leases.get(lease_id) or self._reclaim(lease_id)
        if lease is None:
            raise ConflictError(f"lease {lease_id} is unknown or has expired; its batch is delivered again")
        return lease

    def _check_step(self, field: str, step: int) -> None:
        """Each step takes a batch: none can be beyond the batches that were given out and not yet acknowledged."""
        farthest = self._step + len(self._leases) + self._returned["batches"]
        if step > farthest and self._has_given_out_batches():
            raise InvalidError(
                (field,),
                f"{step} is beyond {farthest}: current_step {self._step} and {farthest - self._step} batches that were "
                "given out and not acknowledged",
            )

    def _has_given_out_batches(self) -> bool:
        """Before the first one nothing contradicts a trainer that resumes from its own checkpoint."""
        return bool(self._db.execute("SELECT EXISTS (SELECT 1 FROM batches)").fetchone()[0])

    def _reclaim(self, lease_id: str) -> Lease | None:
        """A restart returned this batch in case it had not arrived, but its holder has it."""
        query = """UPDATE batches SET state = 'leased' WHERE lease = ? AND state = 'returned' AND NOT sent AND NOT plain
                   RETURNING id, groups, sequences, bytes"""
        for row in self._db.execute(query, (lease_id,)).fetchall():
            lease = self._leases[lease_id] = Lease(lease_id, *row)
            self._count_returned(lease, -1)
            return lease
        return None

    def _count_returned(self, lease: Lease, sign: int) -> None:
        counts = {"batches": 1, "groups": lease.groups, "sequences": lease.sequences, "bytes": lease.bytes}
        self._returned.update({name: sign * count for name, count in counts.items()})

    def _end(self, lease_id: str) -> Lease:
        lease = self._held(lease_id)
        del self._leases[lease_id]
        self._deadlines.pop(lease_id, None)
        return lease

    def _train(self, lease_id: str, step: int) -> Trained:
        lease = self._end(lease_id)
        query = "SELECT env, count(*) FROM groups WHERE batch = ? GROUP BY env"
        trained = dict(self._db.execute(query, (lease.batch,)))
        self._db.execute("UPDATE batches SET state = 'trained', step = ? WHERE id = ?", (step, lease.batch))
        self._set_step(step)
        self._retained_bytes += lease.bytes
        self._forget_beyond_limit()
        return Trained(step, trained, self._drop_stale())

    def _lease_returned(self, plain: bool) -> Lease | None:
        query = "SELECT id, groups, sequences, bytes FROM batches WHERE state = 'returned' ORDER BY id LIMIT 1"
        row = self._db.execute(query).fetchone()
        if row is None:
            return None
        lease = Lease(secrets.token_hex(16), *row)
        self._db.execute(
            "UPDATE batches SET state = 'leased', lease = ?, plain = ?, sent = FALSE, step = NULL WHERE id = ?",
            (lease.id, plain, lease.batch),
        )
        self._count_returned(lease, -1)
        return lease

    def _lease_new(self, plain: bool) -> Lease | None:
        state = self.snapshot()
        wanted = state.demand
        if wanted is None or shortage(state.queued, wanted) is not None:
            return None
        owed = {env_id: self._waiting(env_id) for env_id in wanted.minimums}
        chosen = choose(self._waiting(), owed, state.queued, wanted)
        lease_id = secrets.token_hex(16)
        cursor = self._db.execute(
            """INSERT INTO batches (state, lease, plain, sent, groups, sequences, bytes)
               VALUES ('leased', ?, ?, FALSE, ?, ?, 0)""",
            (lease_id, plain, len(chosen), wanted.batch_size),
        )
        batch = cursor.lastrowid or 0
        size = sum(self._move_to_batch(id, batch) for id in chosen)
        self._db.execute("UPDATE batches SET bytes = ? WHERE id = ?", (size, batch))
        return Lease(lease_id, batch, len(chosen), wanted.batch_size, size)

    def _waiting(self, env_id: int | None = None) -> Iterator[Waiting]:
        where = "" if env_id is None else "AND env = :env"
        query = f"SELECT id, env, size FROM groups WHERE state = 'queued' {where} ORDER BY id"  # noqa: S608
        return map(Waiting._make, self._db.execute(query, {"env": env_id}))

    def _move_to_batch(self, group_id: int, batch: int) -> int:
        query = "UPDATE groups SET state = 'batched', batch = ? WHERE id = ? RETURNING env, size, bytes"
        ((env_id, size, length),) = self._db.execute(query, (batch, group_id)).fetchall()
        self._queue.remove(env_id, size)
        self._queue.bytes -= length
        return int(length)

    def _return_trained(self, which: str, value: int) -> int:
        query = f"SELECT id, groups, sequences, bytes FROM batches WHERE state = 'trained' AND {which}"  # noqa: S608
        rows = self._db.execute(query, (value,)).fetchall()
        for row in rows:
            lease = Lease("", *row)
            self._db.execute("UPDATE batches SET state = 'returned' WHERE id = ?", (lease.batch,))
            self._retained_bytes -= lease.bytes
            self._count_returned(lease, +1)
        return len(rows)

    def _dissolve_returned(self) -> None:
        """The batch size has changed: put the groups of returned batches back where they had arrived."""
        for (batch,) in self._db.execute("SELECT id FROM batches WHERE state = 'returned'").fetchall():
            query = "UPDATE groups SET state = 'queued', batch = NULL WHERE batch = ? RETURNING env, size, bytes"
            for env_id, size, length in self._db.execute(query, (batch,)).fetchall():
                self._queue.add(env_id, size)
                self._queue.bytes += length
            self._db.execute("DELETE FROM batches WHERE id = ?", (batch,))
        self._returned.clear()

    def _is_stale(self, version: int | None) -> bool:
        oldest = self._step - self._limits.max_staleness
        return self._limits.max_staleness > 0 and version is not None and version < oldest

    def _drop_stale(self) -> dict[EnvId, int]:
        dropped: Counter[EnvId] = Counter()
        if self._limits.max_staleness > 0:
            query = "SELECT id, state, env, size, bytes FROM groups WHERE state != 'batched' AND version < ?"
            oldest = self._step - self._limits.max_staleness
            for id, state, env_id, size, length in self._db.execute(query, (oldest,)).fetchall():
                self._delete_groups([id])
                self._queue.bytes -= length
                if state == "queued":
                    self._queue.remove(env_id, size)
                dropped[env_id] += 1
        return dict(dropped)

    def _forget_beyond_limit(self) -> None:
        """A trainer that never reports checkpoints must not fill the disk: the oldest trained batches go first."""
        while self._retained_bytes > self._limits.max_queue_bytes:
            self._forget_trained("id = (SELECT min(id) FROM batches WHERE state = 'trained')")

    def _forget_trained(self, which: str, *values: int) -> None:
        """Only the fact that it was trained stays, for acknowledgements that are repeated."""
        query = f"SELECT id, bytes FROM batches WHERE state = 'trained' AND {which}"  # noqa: S608
        for batch, size in self._db.execute(query, values).fetchall():
            self._delete_groups([id for (id,) in self._db.execute("SELECT id FROM groups WHERE batch = ?", (batch,))])
            self._db.execute("UPDATE batches SET state = 'done' WHERE id = ?", (batch,))
            self._db.execute("DELETE FROM batches WHERE state = 'done' AND id <= ?", (batch - LEASES_REMEMBERED,))
            self._retained_bytes -= size

    def _delete_groups(self, ids: Iterable[int]) -> None:
        for id in ids:
            query = "DELETE FROM groups WHERE id = ? RETURNING segment"
            for (segment,) in self._db.execute(query, (id,)).fetchall():
                self._in_segment[segment] -= 1

    def _set_step(self, step: int) -> None:
        self._step = step
        self.note("step", step)

    def fact(self, name: str) -> bytes | None:
        return next((row[0] for row in self._db.execute("SELECT value FROM facts WHERE name = ?", (name,))), None)

    def note(self, name: str, value: bytes | int) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))


def check_divides(field: str, group_size: int, batch_size: int, whose: str = "") -> None:
    """Groups that do not divide a batch could never fill one."""
    if divides_batch(group_size, batch_size):
        return
    whole, rest = divmod(batch_size, group_size)
    usable = ", ".join(str(n) for n in range(1, min(batch_size, 4096) + 1) if divides_batch(n, batch_size))
    raise InvalidError(
        (field,),
        f"groups of {group_size}{whose} do not divide batches of {batch_size}: "
        f"{batch_size} = {whole} x {group_size} + {rest}; group sizes that do: {usable}",
    )


def queue_is_full(state: Snapshot, limits: Limits, *, heeds_429: bool) -> FullError:
    which = (
        f"{state.queue_bytes} bytes of {limits.max_queue_bytes}"
        if limits.bytes_reached_by(state)
        else f"{limits.max_off_policy_batches} batches"
    )
    detail = f"the queue is full ({which} wait for the trainer); send this group again later"
    return FullError(detail, status=429 if heeds_429 else 503, retry_after=RETRY_AFTER_SECONDS)
