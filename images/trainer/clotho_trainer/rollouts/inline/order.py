"""Which record comes when, as a pure function of the seed and the position: a resumed run goes on where it was."""

import random
from functools import lru_cache


def indices(position: int, count: int, *, records: int, seed: int | None) -> list[int]:
    """The records at `position` and after it, pass after pass; without a seed in the dataset's own order."""
    places = (divmod(place, records) for place in range(position, position + count))
    return [place if seed is None else _order(records, seed, epoch)[place] for epoch, place in places]


@lru_cache(maxsize=2)
def _order(records: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(records))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311
    return tuple(order)
