"""JSON logs, one object a line, in a container; plain lines on a terminal."""

import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, TextIO

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _Hiding(logging.Formatter):
    """No secret is in a line, whatever it is made of, tracebacks of untrusted code included."""

    def __init__(self, inner: logging.Formatter, secrets: Sequence[str]) -> None:
        super().__init__()
        self._inner = inner
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return without(self._secrets, self._inner.format(record))


def without(secrets: Sequence[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def set_up(level: str = "INFO", stream: TextIO | None = None, secrets: Sequence[str] = ()) -> None:
    """To standard output, unless a command keeps that for its own results."""
    stream = stream or sys.stdout
    handler = logging.StreamHandler(stream)
    plain = logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S")
    handler.setFormatter(_Hiding(plain if stream.isatty() else JsonFormatter(), secrets))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
