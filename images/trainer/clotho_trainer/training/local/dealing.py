"""Which rank trains which rows. Pure, and the same on every rank, so that none has to be asked."""

from collections.abc import Sequence
from math import ceil

from clotho_trainer.training.batch import Row, packed_tokens

_FEWEST_PIECES = 4  # a rank: with fewer the largest decides how long the step takes


def deal(rows: Sequence[Row], ranks: int) -> list[list[Row]]:
    """The rows of one prompt stay together, because it is read once for all of them; where there are few prompts, they
    are split. Each piece, largest first, goes to the rank with the fewest tokens so far."""
    shares: list[list[Row]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for piece in sorted(_pieces(rows, _FEWEST_PIECES * ranks), key=packed_tokens, reverse=True):
        lightest = tokens.index(min(tokens))
        shares[lightest] += piece
        tokens[lightest] += packed_tokens(piece)
    return shares


def _pieces(rows: Sequence[Row], wanted: int) -> list[list[Row]]:
    by_prompt: dict[bytes, list[Row]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt.tobytes(), []).append(row)
    cuts = ceil(wanted / max(len(by_prompt), 1))
    return [piece for group in by_prompt.values() for piece in _split(group, cuts)]


def _split(group: list[Row], cuts: int) -> list[list[Row]]:
    size = ceil(len(group) / min(cuts, len(group)))
    return [group[start : start + size] for start in range(0, len(group), size)]
