"""Every rank deals the rows of a batch in the same way, and none gets much more to do than another."""

import numpy as np
import pytest

from clotho_trainer.training.batch import Row, packed_tokens
from clotho_trainer.training.local.dealing import deal


def row(prompt: int, length: int) -> Row:
    tokens = np.arange(length)
    ones = np.ones(length, np.bool_)
    zeros = np.zeros(length, np.float32)
    return Row(np.full(3, prompt), tokens, ones, ones, zeros, zeros)


def batch(prompts: int, each: int) -> list[Row]:
    return [row(prompt, 5 + (prompt * 7 + index * 3) % 20) for prompt in range(prompts) for index in range(each)]


def prompts(share: list[Row]) -> set[bytes]:
    return {each.prompt.tobytes() for each in share}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_row_is_dealt_once(ranks: int) -> None:
    rows = batch(prompts=9, each=4)
    dealt = [each for share in deal(rows, ranks) for each in share]
    assert sorted(map(id, dealt)) == sorted(map(id, rows))


def test_prompts_stay_whole_where_there_are_enough_of_them() -> None:
    shares = deal(batch(prompts=12, each=4), 3)
    assert sum(len(prompts(share)) for share in shares) == 12
    tokens = [packed_tokens(share) for share in shares]
    assert max(tokens) < 1.1 * min(tokens)


def test_few_prompts_are_split() -> None:
    shares = deal(batch(prompts=2, each=16), 4)
    tokens = [packed_tokens(share) for share in shares]
    assert max(tokens) < 1.2 * min(tokens)


def test_fewer_rows_than_ranks_leave_the_last_ranks_empty() -> None:
    assert [len(share) for share in deal(batch(prompts=1, each=2), 3)] == [1, 1, 0]
    assert deal([], 2) == [[], []]
