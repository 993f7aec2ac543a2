"""Ranks join, are missed and end together: both sides of the connection, on loopback."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from clotho_contract.termination import Termination
from clotho_dev.ports import free_port
from clotho_trainer.failures import TrainerError
from clotho_trainer.process.channel import Follower, Hello, Leader, join

NAMES = ("rank 0 (trainer)", "rank 1 (trainer-1)", "rank 2 (trainer-2)")


@asynccontextmanager
async def leading(stop: asyncio.Event | None = None) -> AsyncIterator[tuple[Leader, int]]:
    leader, port = Leader(NAMES, "v1", stop or asyncio.Event()), free_port()
    async with leader.listening("127.0.0.1", port):
        yield leader, port


async def joined(port: int, rank: int, software: str = "v1") -> Follower:
    return await join(Hello(rank, len(NAMES), software), NAMES[0], "127.0.0.1", port, limit_seconds=5)


async def test_rank_0_waits_for_all_and_names_who_is_missing() -> None:
    waiting: list[str] = []
    async with asyncio.timeout(30), leading() as (leader, port):
        everyone = asyncio.create_task(leader.all_reached("joined", waiting.append))
        first = await joined(port, 1)
        assert (await first.orders.get()).what == "joined"
        assert not everyone.done()
        await joined(port, 2)
        await everyone
        leader.order("meet", 4711)
        assert (await first.orders.get()).port == 4711
    assert "rank 2 (trainer-2) to join" in waiting


async def test_a_rank_that_never_joins_is_named() -> None:
    async with asyncio.timeout(30), leading() as (leader, port):
        await joined(port, 1)
        with pytest.raises(
            TrainerError, match=r"^rank 2 \(trainer-2\) has not joined within 1 s; see its pod$"
        ) as found:
            await leader.all_reached("joined", print, limit_seconds=1)
    assert found.value.reason == "DependencyUnavailable"


async def test_ranks_that_have_not_joined_after_a_while_are_reported_until_they_do() -> None:
    reports: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
    leader, port = Leader(NAMES, "v1", asyncio.Event(), reports.put_nowait, late_seconds=0.1), free_port()
    async with asyncio.timeout(30), leader.listening("127.0.0.1", port):
        assert await reports.get() == (1, 2)
        await joined(port, 2)
        assert await reports.get() == (1,)
        await joined(port, 1)
        assert await reports.get() == ()


async def test_rank_0_that_never_answers_is_named() -> None:
    with pytest.raises(TrainerError, match=r"rank 0 \(trainer\) does not answer at 127.0.0.1:\d+ within 1 s"):
        await join(Hello(1, 3, "v1"), NAMES[0], "127.0.0.1", free_port(), limit_seconds=1)


async def test_a_port_that_is_taken_is_named() -> None:
    async with leading() as (_, port):
        with pytest.raises(TrainerError, match=f"the ranks cannot meet on port {port} of rank 0: "):
            async with Leader(NAMES, "v1", asyncio.Event()).listening("127.0.0.1", port):
                pass


async def test_mixed_versions_end_both_sides() -> None:
    async with asyncio.timeout(30), leading() as (leader, port):
        other = await joined(port, 1, software="v2")
        ends = [await leader.ended, await other.ended]
    assert {end.reason for end in ends} == {"DependencyUnavailable"}
    assert all("rank 1 (trainer-1) runs another version than rank 0: v2 instead of v1" in end.message for end in ends)


async def test_a_rank_of_another_attempt_is_refused_and_disturbs_nothing() -> None:
    async with asyncio.timeout(30), leading() as (leader, port):
        first = await joined(port, 1)
        await first.orders.get()
        second = await joined(port, 1)
        assert "has already joined" in (await second.ended).message
        assert not leader.ended.done()


async def test_a_rank_that_ends_is_named_with_its_cause() -> None:
    async with asyncio.timeout(30), leading() as (leader, port):
        follower = await joined(port, 2)
        await follower.orders.get()
        await follower.close(Termination(reason="OutOfMemory", message="no memory left"))
        end = await leader.ended
    assert end.message == "rank 2 (trainer-2) ended with OutOfMemory: no memory left"


def test_a_rank_whose_connection_was_reset_is_named_and_does_not_keep_rank_0_from_ending() -> None:
    """As when it is killed with a message unread; on the event loop that trainers run on."""

    async def end() -> str:
        async with asyncio.timeout(30), leading() as (leader, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b'{"type": "Hello", "rank": 1, "size": 3, "software": "v1"}\n')
            await reader.readline()
            linger_not_at_all = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not_at_all)
            writer.close()
            ending = await leader.ended
            leader.order("step")
            await leader.close(ending)
            return ending.message

    assert uvloop.run(end()) == "rank 1 (trainer-1) ended without a message"


async def test_followers_end_as_rank_0_does() -> None:
    async with asyncio.timeout(30), leading() as (leader, port):
        follower = await joined(port, 1)
        await follower.orders.get()
        await leader.close(Termination(reason="Finished", message="all 5 steps are done and saved", step=5))
        end = await follower.ended
    assert (end.reason, end.message, end.step) == ("Finished", "all 5 steps are done and saved", 5)
    assert not leader.ended.done(), "ranks that leave after the end are not missed"


async def test_a_stop_of_any_rank_stops_all() -> None:
    stop = asyncio.Event()
    async with asyncio.timeout(30), leading(stop) as (_, port):
        follower = await joined(port, 1)
        follower.ask_to_stop()
        await stop.wait()
