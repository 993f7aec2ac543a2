"""Prints the result of a command: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from clotho.cli.terminal.fitting import UNLIMITED, clip, table


def show(output: str, data: Any, lines: Sequence[str]) -> None:
    """`data` is what programs get; `lines` is the same for people."""
    if output == "json":
        print(json.dumps(data, indent=2, ensure_ascii=False, default=str))
    elif output == "yaml":
        print(to_yaml(data), end="")
    else:
        print("\n".join(map(printable, lines)))


def to_yaml(*documents: Any) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Files as literal blocks, which people can read."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110))


def rows(header: Sequence[str], body: Sequence[Sequence[str]], empty: str, width: int = UNLIMITED) -> list[str]:
    """A table, or a sentence where there is nothing to show."""
    return table(header, body, width) if body else [empty]


def printable(text: str) -> str:
    """Control characters in untrusted text (descriptions, logs) are replaced."""
    return "".join(letter if letter.isprintable() or letter == "\t" else "\N{REPLACEMENT CHARACTER}" for letter in text)


def note(text: str) -> None:
    """On standard error, apart from the output that programs read."""
    print(printable(text), file=sys.stderr, flush=True)


def compact(value: Any, limit: int = 40) -> str:
    return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), limit)


def age(timestamp: str | None, now: datetime | None = None) -> str:
    if not timestamp:
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(timestamp)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"
