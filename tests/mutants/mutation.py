"""A deliberate defect: one piece of a source file replaced by another, and the tests that must fail with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class OutdatedMutationError(Exception):
    """The source no longer contains the text that the mutation replaces."""


@dataclass(frozen=True)
class Mutation:
    """`defect` states in a few words what the mutated program does wrong."""

    defect: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def applied_to(self, source: str) -> str:
        count = source.count(self.before)
        if count != 1:
            raise OutdatedMutationError(
                f"{self.file}: expected once, found {count} times: {self.before!r}; "
                f"update the mutation {self.defect!r} in tests/mutants/catalogue"
            )
        return source.replace(self.before, self.after)

    def check(self, root: Path) -> None:
        """Raise OutdatedMutationError unless the mutation applies and its tests exist."""
        self.applied_to((root / self.file).read_text())
        for test in self.tests:
            if not (root / test.partition("::")[0]).exists():
                raise OutdatedMutationError(f"{test} does not exist; update the mutation {self.defect!r}")
