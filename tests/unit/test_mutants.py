"""The catalogue of mutations follows the source: each still applies, and its tests exist."""

from pathlib import Path

import pytest

from mutants.catalogue import CATALOGUE
from mutants.mutation import Mutation, OutdatedMutationError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", CATALOGUE, ids=lambda mutation: mutation.defect)
def test_mutation_applies_to_the_source(mutation: Mutation) -> None:
    mutation.check(ROOT)


def test_defects_are_distinct() -> None:
    assert len({mutation.defect for mutation in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize("source", ["", "twice twice"])
def test_mutation_of_changed_source_is_refused(source: str) -> None:
    mutation = Mutation("a defect", "file.py", "twice", "once", ())
    with pytest.raises(OutdatedMutationError, match=r"file\.py"):
        mutation.applied_to(source)
