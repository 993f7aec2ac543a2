"""Retries: as long as an error is transient, ever more slowly, until the caller gives up."""

import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from clotho_contract.retry import Backoff, TransientError, reason_of, retry_after, retrying

AT_ONCE = Backoff(first=0.0, cap=0.0)


class Flaky:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


async def test_transient_errors_are_retried_until_an_attempt_succeeds() -> None:
    waits: list[str] = []
    flaky = Flaky(TransientError("503"), TransientError("502"))
    assert await retrying(flaky, backoff=AT_ONCE, before_wait=lambda error, _: waits.append(str(error))) == "answer"
    assert waits == ["503", "502"]


async def test_other_errors_end_it_at_once() -> None:
    flaky = Flaky(ValueError("no"), TransientError("never seen"))
    with pytest.raises(ValueError, match="no"):
        await retrying(flaky, backoff=AT_ONCE)
    assert len(flaky.errors) == 1


async def test_the_caller_chooses_which_errors_are_transient() -> None:
    assert await retrying(Flaky(OSError()), on=(OSError,), backoff=AT_ONCE) == "answer"
    with pytest.raises(TransientError):
        await retrying(Flaky(TransientError("not this one")), on=(OSError,), backoff=AT_ONCE)


async def test_the_caller_gives_up_by_raising() -> None:
    def give_up(error: Exception, pause: float) -> None:
        raise LookupError(f"{error}, next attempt in {pause:.0f} s")

    with pytest.raises(LookupError, match="busy, next attempt in 7 s"):
        await retrying(Flaky(TransientError("busy", retry_after=7)), before_wait=give_up)


@pytest.mark.parametrize(
    ("error", "backoff", "pause"),
    [
        (TransientError(""), 4.0, 4.0),
        (TransientError("", retry_after=7.0), 4.0, 7.0),
        (TransientError("", retry_after=0.0), 4.0, 0.0),
        (TransientError("", within=7.0), 4.0, 4.0),
        (TransientError("", within=1.0), 4.0, 1.0),
    ],
)
def test_the_server_may_set_or_shorten_the_pause(error: TransientError, backoff: float, pause: float) -> None:
    assert error.pause(backoff) == pause


def test_backoff_grows_up_to_its_cap() -> None:
    delays = [Backoff(first=1, cap=8).delay(failures) for failures in range(1, 7)]
    assert all(limit / 2 <= delay <= limit for delay, limit in zip(delays, [1, 2, 4, 8, 8, 8], strict=True))
    assert Backoff(first=1, cap=8).delay(10**6) <= 8


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("0.5", 0.5), (None, None), ("Wed, 21 Oct", None), ("-1", None), ("1e9", None)]
)
def test_retry_after_header_is_parsed(header: str | None, seconds: float | None) -> None:
    assert retry_after({"Retry-After": header} if header else {}) == seconds


def test_every_error_has_a_reason() -> None:
    assert [reason_of(error) for error in (TimeoutError(), OSError("reset"))] == ["TimeoutError", "reset"]


@pytest.mark.parametrize("tls", [True, False, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)])
def test_a_failed_connection_does_not_show_its_tls_context(tls: bool | ssl.SSLContext) -> None:
    key = ConnectionKey("absent.example", 443, True, tls, None, None, None)
    error = aiohttp.ClientConnectorError(key, OSError(111, "Connection refused"))
    assert reason_of(error) == "Cannot connect to host absent.example:443 [Connection refused]"
