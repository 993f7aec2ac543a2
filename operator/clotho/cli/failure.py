"""How a command fails: one line for people, one exit code for scripts."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """docs/cli.md explains them; scripts rely on them."""

    OK = 0
    UNSUCCESSFUL = 1  # the run failed, the test failed, the check found something missing
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4  # no permission, invalid, locked, or in the wrong phase
    UNREACHABLE = 5
    TIMEOUT = 6
    INTERRUPTED = 130  # SIGINT
    TERMINATED = 143  # SIGTERM


class Failure(Exception):  # noqa: N818 - an outcome that is reported, not a bug
    def __init__(self, message: str, code: Exit = Exit.UNSUCCESSFUL) -> None:
        super().__init__(message)
        self.code = code
