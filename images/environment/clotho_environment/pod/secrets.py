"""Keeps the run's token and the model's API key from untrusted code: in child processes, and in what they can read."""

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clotho_contract.names import TOKEN_VARIABLE, TOKEN_VARIABLES

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"
_PR_SET_DUMPABLE: Final = 4


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    token: str
    api_key: str

    @property
    def values(self) -> list[str]:
        return [value for value in (self.token, self.api_key) if value]


def take_secrets() -> Secrets:
    """Call first: the tokens leave `os.environ`, and other processes of this user can no longer read our memory."""
    secrets = Secrets(os.environ.get(TOKEN_VARIABLE, ""), os.environ.get(API_KEY_VARIABLE, ""))
    for name in TOKEN_VARIABLES:
        os.environ.pop(name, None)
    _forbid_inspection()
    return secrets


def child_variables(extra: Mapping[str, str]) -> dict[str, str]:
    """For a process that runs untrusted code: everything but secrets, which includes the environment's own settings."""
    hidden = {*TOKEN_VARIABLES, API_KEY_VARIABLE}
    return {key: value for key, value in os.environ.items() if key not in hidden} | dict(extra)


def _forbid_inspection() -> None:
    """The kernel keeps the variables of the start in memory, readable in /proc/PID/environ by the same user."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
