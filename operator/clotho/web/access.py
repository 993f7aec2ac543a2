"""Whose rights a request has: those of a local kubeconfig, or those of the bearer token that it carries."""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final, Protocol

from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import Credentials
from clotho.web.feed import Feed
from clotho.web.pages import Rows

TIMEOUT_SECONDS: Final = 20.0
STREAMS: Final = 256  # a watch is one
MOST_PEOPLE: Final = 64
SWEEP_SECONDS: Final = 30.0


class Reader:
    """A feed with the rows that were made from it."""

    def __init__(self, feed: Feed) -> None:
        self.feed, self.rows = feed, Rows()


class Access(Protocol):
    mode: str

    def reader(self, token: str) -> Reader | None:
        """None for a token that gives no access."""

    async def forget(self, token: str) -> None:
        """The cluster does not accept it."""

    async def close(self) -> None: ...


class TooManyPeopleError(Exception):
    pass


def api_client(credentials: Credentials) -> ApiClient:
    return ApiClient(credentials, timeout_seconds=TIMEOUT_SECONDS, streams=STREAMS, user_agent="clotho-web")


class LocalAccess:
    """For `clotho ui`: one person's kubeconfig, protected from other users of the machine by a key.

    The address that a browser is started with is visible in the list of processes, so it has a code that works once.
    """

    mode = "local"

    def __init__(self, feed: Feed) -> None:
        self._reader = Reader(feed)
        self.key = secrets.token_urlsafe(24)
        self._codes: set[str] = set()

    def new_code(self) -> str:
        code = secrets.token_urlsafe(24)
        self._codes.add(code)
        return code

    def exchange(self, code: str) -> str:
        """The key, once for each code; else nothing."""
        found = next((each for each in self._codes if hmac.compare_digest(each.encode(), code.encode())), None)
        self._codes.discard(found or "")
        return self.key if found else ""

    def reader(self, token: str) -> Reader | None:
        return self._reader if hmac.compare_digest(token.encode(), self.key.encode()) else None

    async def forget(self, token: str) -> None:
        """The kubeconfig stays: a login elsewhere renews it."""

    async def close(self) -> None:
        await self._reader.feed.close()


class TokenAccess:
    """In the cluster: each token has a feed of its own, which ends when no page uses it. There are no other rights."""

    mode = "token"

    def __init__(self, credentials_of: Callable[[str], Credentials]) -> None:
        self._credentials_of = credentials_of
        self._readers: dict[bytes, Reader] = {}
        self._sweeper = asyncio.create_task(self._sweep())

    def reader(self, token: str) -> Reader | None:
        if not token:
            return None
        key = hashlib.sha256(token.encode()).digest()
        if key not in self._readers:
            if len(self._readers) >= MOST_PEOPLE:
                raise TooManyPeopleError
            self._readers[key] = Reader(Feed(api_client(self._credentials_of(token))))
        return self._readers[key]

    async def forget(self, token: str) -> None:
        if (reader := self._readers.pop(hashlib.sha256(token.encode()).digest(), None)) is not None:
            await reader.feed.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for key in [key for key, reader in self._readers.items() if reader.feed.is_idle]:
                await self._readers.pop(key).feed.close()

    async def close(self) -> None:
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(reader.feed.close() for reader in self._readers.values()))
