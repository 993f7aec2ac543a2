"""Requests are spread over the ranks of the trainer, away from those that do not answer."""

import heapq
import random
from collections import Counter
from contextlib import ExitStack

import pytest

from clotho_environment.sdk.routing import PAUSE_SECONDS, Affinity, Routes, Server


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def routes(count: int = 3) -> tuple[Routes, Clock]:
    clock = Clock()
    return Routes([Server(f"http://rank-{rank}") for rank in range(count)], clock), clock


def test_fewest_samples_in_flight_decide() -> None:
    spread, _ = routes()
    with spread.taken(16) as first, spread.taken(4) as second, spread.taken(4) as third, spread.taken(1) as fourth:
        assert len({first.url, second.url, third.url}) == 3
        assert fourth is second, "not the one with sixteen"
    assert [server.in_flight for server in spread.servers] == [0, 0, 0]


def test_requests_one_after_the_other_are_shared_equally() -> None:
    spread, _ = routes()
    served: Counter[str] = Counter()
    for _ in range(30):
        with spread.taken(8) as server:
            served[server.url] += 8
    assert set(served.values()) == {80}


def served_shares(slowness: tuple[float, ...]) -> list[float]:
    """The share of each server after 400 requests of eight, twelve at a time, each taking about a second."""
    spread, clock = routes(len(slowness))
    durations = random.Random(1)  # noqa: S311
    served: Counter[str] = Counter()
    running: list[tuple[float, int, ExitStack]] = []
    for request in range(400):
        if len(running) == 12:
            clock.now, _, finished = heapq.heappop(running)
            finished.close()
        slot = ExitStack()
        server = slot.enter_context(spread.taken(8))
        served[server.url] += 8
        seconds = durations.uniform(0.5, 1.5) * slowness[spread.servers.index(server)]
        heapq.heappush(running, (clock.now + seconds, request, slot))
    return [served[server.url] / served.total() for server in spread.servers]


def test_servers_of_equal_speed_get_equal_shares() -> None:
    assert served_shares((1.0, 1.0, 1.0)) == pytest.approx([1 / 3] * 3, rel=0.1)


def test_slow_server_gets_less() -> None:
    slow, *others = served_shares((3.0, 1.0, 1.0))
    assert slow < 0.6 * min(others)


def test_conversation_stays_on_its_server_until_that_fails() -> None:
    spread, clock = routes()
    affinity = Affinity()
    with spread.taken(1, affinity) as first:
        pass
    with spread.taken(5, affinity) as second:
        assert second is first, "although others have less to do"
        spread.failed(first)
    with spread.taken(1, affinity) as elsewhere:
        assert elsewhere is not first
    clock.now += PAUSE_SECONDS
    with spread.taken(1, affinity) as later:
        assert later is elsewhere


def test_server_that_failed_comes_back_later_and_after_longer_each_time() -> None:
    spread, clock = routes(2)
    bad, good = spread.servers
    spread.failed(bad)
    assert spread.choose() is good
    good.in_flight = 99
    assert spread.choose() is good
    clock.now += PAUSE_SECONDS
    assert spread.choose() is bad
    spread.failed(bad)
    clock.now += PAUSE_SECONDS
    assert spread.choose() is good, "twice as long the second time"
    clock.now += PAUSE_SECONDS
    spread.answered(bad)
    assert spread.choose() is bad


def test_the_server_s_own_pause_counts() -> None:
    spread, clock = routes(2)
    spread.failed(spread.servers[0], retry_after=5.0)
    clock.now += 4.9
    assert spread.choose() is spread.servers[1]


def test_when_all_have_failed_the_first_to_come_back_is_tried() -> None:
    spread, clock = routes(2)
    spread.failed(spread.servers[1], retry_after=9.0)
    spread.failed(spread.servers[0], retry_after=3.0)
    assert not spread.has_available
    assert spread.choose() is spread.servers[0]
    clock.now += 3.0
    assert spread.has_available


def test_addresses_may_end_with_the_openai_prefix() -> None:
    assert [server.url for server in Routes.to(["http://a:1/v1/"]).servers] == ["http://a:1"]


def test_servers_come_and_go_while_requests_are_in_flight() -> None:
    spread, _ = routes(2)
    conversation = Affinity()
    with spread.taken(8, conversation) as gone:
        stays = next(server for server in spread.servers if server is not gone)
        stays.served, stays.failures = 24, 2
        spread.update([f"{stays.url}/v1", "http://replica-0"])
        kept, new = spread.servers
        assert (kept, kept.failures, new.url, new.served) == (stays, 2, "http://replica-0", 0)
        with spread.taken(1, conversation) as other:
            assert other is not gone, "a conversation leaves a server that was removed"
    assert gone.in_flight == 0
