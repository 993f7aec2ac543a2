"""Which queued groups make the next batch: exactly the batch size, oldest first, every environment's minimum kept."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

EnvId = int | None
Tally = Mapping[EnvId, Mapping[int, int]]
"""What waits: environment -> size of a group -> how many such groups."""


class Waiting(NamedTuple):
    """One queued group."""

    id: int
    env_id: EnvId
    size: int


class Demand(Struct, frozen=True):
    """What a batch must be made of. Minimums are sequences, of connected environments only."""

    batch_size: int
    minimums: Mapping[int, int]


class Shortage(Struct, frozen=True):
    """Why there is no batch yet: these environments owe their minimum; empty when groups of any would do."""

    environments: frozenset[int] = frozenset()


def demand(batch_size: int, allocations: Mapping[int, float]) -> Demand:
    """Shares of a batch as sequences, scaled down together when they promise more than a batch holds."""
    minimums = {env_id: int(batch_size * share) for env_id, share in allocations.items()}
    promised = sum(minimums.values())
    if promised > batch_size:
        minimums = {env_id: minimum * batch_size // promised for env_id, minimum in minimums.items()}
    return Demand(batch_size, {env_id: minimum for env_id, minimum in minimums.items() if minimum > 0})


def shortage(tally: Tally, wanted: Demand) -> Shortage | None:
    """None when a batch can be made from what waits."""
    owing = {env for env, minimum in wanted.minimums.items() if _sequences(tally.get(env, {})) < minimum}
    if owing:
        return Shortage(frozenset(owing))
    return None if _reaches(_by_size(tally), wanted.batch_size) else Shortage()


def choose(queue: Iterable[Waiting], owed: Mapping[int, Iterable[Waiting]], tally: Tally, wanted: Demand) -> list[int]:
    """The ids of the next batch in arrival order. `owed` is the queue of each environment that has a minimum.

    A group is taken unless the batch could not be filled exactly with it, so that odd sizes never block the queue.
    Call it only when there is no shortage.
    """
    left = Counter(_by_size(tally))
    room = wanted.batch_size
    taken: set[int] = set()

    def take_if_it_fits(group: Waiting) -> bool:
        nonlocal room
        if group.id in taken or group.size > room:
            return False
        left[group.size] -= 1
        if not _reaches(left, room - group.size):
            left[group.size] += 1
            return False
        taken.add(group.id)
        room -= group.size
        return True

    for env_id, minimum in wanted.minimums.items():
        got = 0
        for group in owed[env_id]:
            if got >= minimum or room == 0:
                break
            got += group.size if take_if_it_fits(group) else 0
    for group in queue:
        if room == 0:
            break
        take_if_it_fits(group)
    return sorted(taken)


def complete_pack(sizes: Iterable[tuple[int, int]], group_size: int) -> list[int]:
    """Ids of waiting parts, oldest first, that add up to one group of the registered size; empty when none do."""
    parts = [Waiting(id, None, size) for id, size in sizes]
    tally: Tally = {None: Counter(part.size for part in parts)}
    wanted = Demand(group_size, {})
    return choose(parts, {}, tally, wanted) if shortage(tally, wanted) is None else []


def _sequences(sizes: Mapping[int, int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _by_size(tally: Tally) -> Counter[int]:
    total: Counter[int] = Counter()
    for sizes in tally.values():
        total.update(sizes)
    return total


def _reaches(counts: Mapping[int, int], target: int) -> bool:
    """Whether some of the groups add up to the target. Bit n of `sums` says that n is a sum."""
    sums = 1
    for size, count in counts.items():
        if count * size >= target and target % size == 0:
            return True
        step, left = 1, min(count, target // size)
        while left > 0:
            step = min(step, left)
            sums |= sums << (step * size)
            left -= step
            step *= 2
        sums &= (2 << target) - 1
    return bool(sums >> target & 1)
