"""A line of a pod's log for a reader: time, level and message of a JSON line; any other line as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from clotho_contract.history import LOG_KEY

_LEVELS: Final = {"warning": "WARN", "critical": "FATAL"}
_SHOWN: Final = frozenset({"time", "level", "logger", "message", "exception"})

_MOST_FIELDS: Final = 8  # more, such as all metrics of a step, are for programs


def readable(line: str) -> list[str]:
    """Several lines where the message has several, or a traceback, which is indented; nothing of a record."""
    entry = _entry(line)
    if entry is None:
        return [line]
    if LOG_KEY in entry:  # curves for the operator
        return []
    first, *others = str(entry["message"]).split("\n")
    level = str(entry["level"])
    fields = {key: value for key, value in entry.items() if key not in _SHOWN}
    details = "".join(f"  {key}={_compact(value)}" for key, value in fields.items())
    if len(fields) > _MOST_FIELDS:
        details = f"  ({len(fields)} fields)"
    heading = f"{_moment(str(entry['time']))} {_LEVELS.get(level, level.upper()):5} {first}{details}"
    return [heading, *(f"  {each}" for each in [*others, *str(entry.get("exception", "")).splitlines()])]


def as_json(component: str, line: str) -> str:
    """One JSON object for each line, whatever the pod printed."""
    entry = _entry(line)
    return json.dumps({"component": component, **({"message": line} if entry is None else entry)})


def not_older(lines: Sequence[str], than: datetime) -> Sequence[str]:
    """From the first such line on; those without a time belong to the one before."""
    for number, line in enumerate(lines):
        written = _written_at(line)
        if written is not None and written >= than:
            return lines[number:]
    return ()


def _written_at(line: str) -> datetime | None:
    entry = _entry(line)
    try:
        time = datetime.fromisoformat(str(entry["time"])) if entry is not None else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _entry(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and {"time", "level", "message"} <= entry.keys() else None


def _moment(time: str) -> str:
    """`11-15 12:00:01`, in UTC as the pods write it."""
    return time[5:19].replace("T", " ")


def _compact(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
