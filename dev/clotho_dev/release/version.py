"""Versions of releases: semantic versions, and the form that Python packages give them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clotho_dev.cluster.failure import ClusterError

_SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-(alpha|beta|rc)\.(0|[1-9]\d*))?")
_STAGES = ("alpha", "beta", "rc", "")  # in the order they are released


@dataclass(frozen=True, order=True)
class Version:
    numbers: tuple[int, int, int]
    stage: int = len(_STAGES) - 1
    attempt: int = 0

    def __str__(self) -> str:
        numbers = ".".join(map(str, self.numbers))
        return f"{numbers}-{_STAGES[self.stage]}.{self.attempt}" if _STAGES[self.stage] else numbers

    @property
    def in_python(self) -> str:
        """As PEP 440 writes it: 0.2.0-rc.1 is 0.2.0rc1."""
        short = {"alpha": "a", "beta": "b", "rc": "rc", "": ""}[_STAGES[self.stage]]
        return ".".join(map(str, self.numbers)) + (f"{short}{self.attempt}" if short else "")


def parse(text: str) -> Version:
    found = _SEMANTIC.fullmatch(text)
    if found is None:
        raise ClusterError(
            f"VERSION={text} is no version of a release: write major.minor.patch, perhaps with -alpha.N, -beta.N or"
            " -rc.N, as in VERSION=0.2.0 or VERSION=0.2.0-rc.1"
        )
    major, minor, patch, stage, attempt = found.groups()
    return Version((int(major), int(minor), int(patch)), _STAGES.index(stage or ""), int(attempt or 0))


def require_newer(new: Version, old: Version) -> None:
    if new <= old:
        raise ClusterError(f"VERSION={new} is not newer than {old}, which this repository has already")
