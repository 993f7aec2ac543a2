"""One run at a time trains on a volume: a lock file that carries the run's identity.

The kernel's lock ends with the process that holds it. Where a file system keeps such locks on each node to itself, the
heartbeat in the file shows that its holder is alive.
"""

import asyncio
import errno
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from clotho_contract import untrusted
from clotho_contract.config import RunIdentity
from clotho_trainer.failures import TrainerError

log = logging.getLogger(__name__)

_FILE, _SIZE = "trainer.lock", 1024
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})


class Holder(Struct, frozen=True):
    """The content of the file; it is empty when nothing holds the lock."""

    run: str
    name: str  # namespace/name
    beat: int = 0


@dataclass(frozen=True)
class Timing:
    """In seconds. A holder whose heartbeat does not change for `silence` is gone."""

    beat: float = 5.0
    silence: float = 30.0
    limit_seconds: float = 60.0


USUAL = Timing()


@asynccontextmanager
async def held(
    folder: Path, run: RunIdentity, on_wait: Callable[[str], None], timing: Timing | None = None
) -> AsyncIterator[None]:
    """Waits for a run that is just ending; fails when the other run trains on."""
    timing = timing or USUAL
    own = Holder(run=run.id, name=f"{run.namespace}/{run.name}")
    with _open(folder) as file:
        await _acquire(file, own, on_wait, timing)
        _write(file, own)
        beating = asyncio.create_task(_beat(file, own, timing.beat))
        try:
            yield
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating
            file.truncate(0)


async def _acquire(file: FileIO, own: Holder, on_wait: Callable[[str], None], timing: Timing) -> None:
    clock = asyncio.get_running_loop().time
    began = changed = clock()
    seen: Holder | None = None
    while True:
        is_locked, holder = _lock(file), _read(file)
        if is_locked and (holder is None or holder.run == own.run):
            return
        if holder != seen:
            seen, changed = holder, clock()
        other = holder.name if holder else "another process"
        if is_locked and clock() - changed >= timing.silence:
            log.warning("the volume's lock is taken over from %s: no heartbeat for %.0f s", other, timing.silence)
            return
        if clock() - began >= timing.limit_seconds:
            raise TrainerError(
                "DependencyUnavailable",
                f"the volume is in use by {other}; stop that run, or give this one a claim of its own",
            )
        on_wait(f"{other} to release the volume")
        await asyncio.sleep(min(timing.beat, 1.0))


async def _beat(file: FileIO, own: Holder, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        own = structs.replace(own, beat=own.beat + 1)
        try:
            _write(file, own)
        except OSError as error:  # a full disk, for example; the kernel's lock still holds
            log.warning("the heartbeat in %s failed: %s", _FILE, error)


def _open(folder: Path) -> FileIO:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILE
    path.touch()
    return path.open("r+b", buffering=0)


def _lock(file: FileIO) -> bool:
    """True also where the file system has no such locks: the heartbeat decides there."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _read(file: FileIO) -> Holder | None:
    try:
        return untrusted.decode(os.pread(file.fileno(), _SIZE, 0), Holder)
    except msgspec.MsgspecError:
        return None


def _write(file: FileIO, holder: Holder) -> None:
    """In one piece and always of one size: a reader sees the old content or the new."""
    os.pwrite(file.fileno(), msgspec.json.encode(holder).ljust(_SIZE), 0)
