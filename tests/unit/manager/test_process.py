"""What the operator's process logs of errors that reach no task."""

import asyncio

import pytest

from clotho.manager.__main__ import report_loop_error


def test_a_connection_that_breaks_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    broken = {"message": "Fatal error on SSL protocol", "exception": RuntimeError("the handler is closed")}
    report_loop_error(loop, broken)
    loop.close()
    (record,) = caplog.records
    assert record.getMessage() == "a connection broke: the handler is closed"
    assert record.exc_info is None


def test_other_errors_keep_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    report_loop_error(loop, {"message": "Task exception was never retrieved", "exception": KeyError("lost")})
    loop.close()
    (record,) = caplog.records
    assert "Task exception was never retrieved" in record.getMessage()
    assert record.exc_info
