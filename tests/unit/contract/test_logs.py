"""Logs of a container: one JSON object a line, and no secret in any of them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from clotho_contract import logs


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up(stream=stream, secrets=["tok-1", "sk-2"])
    yield stream
    root.handlers[:], root.level = before


def test_secrets_are_in_no_line_and_in_no_traceback(lines: io.StringIO) -> None:
    log = logging.getLogger("untrusted")
    log.info("the token is %s", "tok-1", extra={"headers": {"key": "sk-2"}})
    try:
        raise RuntimeError("Bearer sk-2")
    except RuntimeError:
        log.exception("failed")
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert logged[0]["message"] == "the token is ***"
    assert logged[0]["headers"] == {"key": "***"}
    assert "RuntimeError: Bearer ***" in logged[1]["exception"]
    assert "sk-2" not in lines.getvalue()
