"""Two runs never train on one volume at the same time."""

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clotho_contract.config import RunIdentity
from clotho_trainer.failures import TrainerError
from clotho_trainer.training import volume_lock
from clotho_trainer.training.volume_lock import Holder, Timing, held

FIRST = RunIdentity(name="first", namespace="team", id="a")
SECOND = RunIdentity(name="second", namespace="team", id="b")
NO_WAITING = Timing(beat=0.01, silence=0.05, limit_seconds=0.0)
LONG_WAITING = Timing(beat=0.01, silence=0.05, limit_seconds=60.0)


async def test_a_second_run_fails_with_the_name_of_the_first(tmp_path: Path) -> None:
    waits: list[str] = []
    async with held(tmp_path, FIRST, waits.append, LONG_WAITING):
        with pytest.raises(TrainerError, match=r"in use by team/first; stop that run, or give this one") as caught:
            async with held(tmp_path, SECOND, waits.append, NO_WAITING):
                raise AssertionError("two runs hold the volume")
    assert caught.value.reason == "DependencyUnavailable"


async def test_a_second_run_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    waits: asyncio.Queue[str] = asyncio.Queue()

    async def second() -> None:
        async with held(tmp_path, SECOND, waits.put_nowait, LONG_WAITING):
            pass

    async with held(tmp_path, FIRST, print, LONG_WAITING):
        waiting = asyncio.create_task(second())
        assert await asyncio.wait_for(waits.get(), 30) == "team/first to release the volume"
        assert not waiting.done()
    await asyncio.wait_for(waiting, 30)


HOLDER = """
import asyncio, sys
from pathlib import Path
from clotho_contract.config import RunIdentity
from clotho_trainer.training.volume_lock import held

async def main():
    async with held(Path(sys.argv[1]), RunIdentity(name="first", namespace="team", id="a"), print):
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A volume whose holder was killed: the file still names it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert json.loads((tmp_path / "trainer.lock").read_text())["name"] == "team/first"
    return tmp_path


async def test_the_next_attempt_of_a_crashed_run_takes_the_lock_at_once(crashed: Path) -> None:
    async with held(crashed, FIRST, print, Timing(limit_seconds=0.0)):
        pass


async def test_another_run_takes_over_once_the_heartbeat_is_silent(crashed: Path) -> None:
    waits: list[str] = []
    async with held(crashed, SECOND, waits.append, LONG_WAITING):
        assert json.loads((crashed / "trainer.lock").read_text())["run"] == "b"
    assert waits, "not before the silence was long enough"


async def test_the_heartbeat_protects_where_the_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = itertools.count()
    monkeypatch.setattr(volume_lock, "_lock", lambda file: True)
    monkeypatch.setattr(volume_lock, "_read", lambda file: Holder(run="a", name="team/first", beat=next(beats)))
    with pytest.raises(TrainerError, match="in use by team/first"):
        async with held(tmp_path, SECOND, print, Timing(beat=0.01, silence=0.0001, limit_seconds=0.1)):
            raise AssertionError("two runs hold the volume")


async def test_the_holder_s_heartbeat_changes_the_file(tmp_path: Path) -> None:
    async with held(tmp_path, FIRST, print, LONG_WAITING), asyncio.timeout(30):
        first = (tmp_path / "trainer.lock").read_bytes()
        while (tmp_path / "trainer.lock").read_bytes() == first:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)


async def test_a_live_process_keeps_the_lock_though_its_heartbeat_stalls(tmp_path: Path) -> None:
    async with held(tmp_path, FIRST, print, Timing(beat=1000.0)):
        with pytest.raises(TrainerError, match="in use by team/first"):
            async with held(tmp_path, SECOND, print, Timing(beat=0.01, silence=0.01, limit_seconds=0.2)):
                raise AssertionError("two runs hold the volume")


async def test_a_damaged_file_is_no_holder(tmp_path: Path) -> None:
    (tmp_path / "trainer.lock").write_bytes(b'{"run": "\xff", "name": "a"}')
    async with held(tmp_path, SECOND, print, NO_WAITING):
        pass


async def test_a_released_lock_is_free(tmp_path: Path) -> None:
    async with held(tmp_path, FIRST, print):
        pass
    async with held(tmp_path, SECOND, print, NO_WAITING):
        pass
