"""Which of the policy's inference servers gets a request. Pure: the clock is passed in."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

PAUSE_SECONDS = 1.0  # before a server that did not answer is tried again
LONGEST_PAUSE_SECONDS = 30.0


@dataclass
class Server:
    """One rank of the trainer, or an inference replica."""

    url: str
    in_flight: int = 0  # samples
    served: int = 0
    failures: int = 0  # in a row
    down_until: float = 0.0


@dataclass
class Affinity:
    """Remembers the server of a conversation, which may still hold its beginning in memory."""

    server: Server | None = None


@dataclass
class Routes:
    """The fewest samples in flight decide; among equals, the fewest samples so far. A server that failed gets nothing
    for a while, unless all have failed."""

    servers: Sequence[Server]
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def to(cls, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> "Routes":
        """In an order of its own, so that many clients do not all begin with the same server."""
        servers = [Server(_base(url)) for url in urls]
        random.shuffle(servers)
        return cls(servers, clock)

    def update(self, urls: Sequence[str]) -> None:
        """Servers were added or removed; the others keep what is known of them, and new ones begin as equals."""
        known = {server.url: server for server in self.servers}
        served = min((server.served for server in self.servers), default=0)
        self.servers = [known.get(_base(url)) or Server(_base(url), served=served) for url in urls]

    @property
    def has_available(self) -> bool:
        return any(server.down_until <= self.clock() for server in self.servers)

    def choose(self, affinity: Affinity | None = None) -> Server:
        now = self.clock()
        known = affinity.server if affinity else None
        if known is not None and known.down_until <= now and any(known is server for server in self.servers):
            return known
        available = [server for server in self.servers if server.down_until <= now]
        if not available:
            return min(self.servers, key=lambda server: server.down_until)
        return min(available, key=lambda server: (server.in_flight, server.served))

    @contextmanager
    def taken(self, samples: int, affinity: Affinity | None = None) -> Iterator[Server]:
        """A request for so many samples; it counts as in flight until the block ends."""
        server = self.choose(affinity)
        if affinity is not None:
            affinity.server = server
        server.in_flight += samples
        try:
            yield server
            server.served += samples
        finally:
            server.in_flight -= samples

    def answered(self, server: Server) -> None:
        server.failures, server.down_until = 0, 0.0

    def failed(self, server: Server, retry_after: float | None = None) -> None:
        server.failures += 1
        pause = min(PAUSE_SECONDS * 2.0 ** min(server.failures - 1, 10), LONGEST_PAUSE_SECONDS)
        server.down_until = self.clock() + (pause if retry_after is None else retry_after)


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
