"""Which words are offered for one that does not exist."""

import pytest

from clotho_contract.nearest import nearest


@pytest.mark.parametrize(
    ("word", "known", "offered"),
    [
        ("sttus", ["status", "start", "stop"], "; did you mean status?"),
        ("learningRat", ["learningRate", "weightDecay", "lengthRate"], "; did you mean learningRate?"),
        ("run-3", ["run-1", "run-2"], "; did you mean run-2 or run-1?"),
        ("STATUS", ["status", "statuses"], "; did you mean status?"),
        ("xyz", ["status"], ""),
    ],
)
def test_only_words_about_as_near_as_the_nearest_are_offered(word: str, known: list[str], offered: str) -> None:
    assert nearest(word, known) == offered
