"""Bounds on request bodies."""

import gzip

import pytest

from clotho_api_server.http.bodies import expand
from clotho_api_server.refusals import RefusalError, TooLargeError


def test_a_body_is_expanded() -> None:
    assert expand(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000


def test_a_bomb_is_refused_before_it_is_expanded() -> None:
    with pytest.raises(TooLargeError):
        expand(gzip.compress(bytes(10_000_000)), 1000)


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not gzip", id="plain"),
        pytest.param(gzip.compress(b"x" * 1000)[:-9], id="cut"),
        pytest.param(gzip.compress(b"x" * 1000)[:-4] + (10).to_bytes(4, "little"), id="a bomb with a false size"),
        pytest.param(gzip.compress(b"a") + gzip.compress(b"b"), id="two members"),
    ],
)
def test_damaged_gzip_is_refused(damaged: bytes) -> None:
    with pytest.raises(RefusalError):
        expand(damaged, 10_000)
