"""The queue as an environment sees it, and whether it must slow down. Pure arithmetic on a snapshot."""

from collections.abc import Mapping

from msgspec import Struct

from clotho_api_server.state.batching import Demand, EnvId, Tally, demand, shortage
from clotho_contract.api_protocol import EnvStatus, Register, RegisterEnv

LEAST_WEIGHT = 0.01  # no environment starves, however small its share


class Environment(Struct, frozen=True):
    """An environment that has registered at some time."""

    id: int
    name: str
    asked: RegisterEnv
    connected: bool


class Snapshot(Struct, frozen=True):
    """The state as it is on disk. Published after every commit; cheap, because it holds counts and no groups."""

    registration: Register | None = None
    started: bool = False
    step: int = 0
    queued: Tally = {}
    queue_groups: int = 0
    queue_bytes: int = 0
    returned_batches: int = 0
    returned_groups: int = 0
    returned_sequences: int = 0
    leased_batches: int = 0
    retained_bytes: int = 0
    environments: Mapping[int, Environment] = {}

    @property
    def demand(self) -> Demand | None:
        return demand(self.registration.batch_size, allocations(self.environments)) if self.registration else None

    @property
    def has_batch(self) -> bool:
        wanted = self.demand
        return self.returned_batches > 0 or (wanted is not None and shortage(self.queued, wanted) is None)

    @property
    def sequences(self) -> int:
        return self.returned_sequences + sum(map(_count, self.queued.values()))


class Limits(Struct, frozen=True):
    max_queue_bytes: int
    max_off_policy_batches: int
    max_staleness: int = 0
    lease_seconds: float = 600.0

    def reached_by(self, state: Snapshot) -> bool:
        return self.bytes_reached_by(state) or self.batches_reached_by(state)

    def bytes_reached_by(self, state: Snapshot) -> bool:
        return state.queue_bytes >= self.max_queue_bytes

    def batches_reached_by(self, state: Snapshot) -> bool:
        registration = state.registration
        return registration is not None and state.sequences >= self.max_off_policy_batches * registration.batch_size


def allocations(environments: Mapping[int, Environment]) -> dict[int, float]:
    """Only the connected count: a dead environment's minimum must not hold up a batch."""
    shares = {env.id: env.asked.min_batch_allocation for env in environments.values() if env.connected}
    return {env_id: share for env_id, share in shares.items() if share is not None}


def is_needed(state: Snapshot, env_id: EnvId) -> bool:
    """Whether a full queue still takes groups of this environment: it does when the next batch waits for them."""
    wanted = state.demand
    if wanted is None:
        return False
    lacking = shortage(state.queued, wanted)
    return lacking is not None and (not lacking.environments or env_id in lacking.environments)


def needs_no_group(state: Snapshot) -> bool:
    wanted = state.demand
    return wanted is None or shortage(state.queued, wanted) is None


def environment_status(state: Snapshot, env: Environment) -> EnvStatus:
    """Atropos' figures: others' groups count as far as they exceed what is set aside for those others."""
    largest = max((size for sizes in state.queued.values() for size in sizes), default=1)
    own = state.queued.get(env.id, {})
    group_size = max([env.asked.group_size, *own])
    shares = allocations(state.environments)
    batch_size = state.registration.batch_size if state.registration else 0
    set_aside: dict[EnvId, int] = {env_id: int(batch_size * share) for env_id, share in shares.items()}
    from_others = sum(
        max(0, -(-_count(sizes) // largest) * largest - set_aside.get(other, 0))
        for other, sizes in state.queued.items()
        if other != env.id
    )
    return EnvStatus(
        current_step=state.step,
        queue_size=(_count(own) + from_others + state.returned_sequences) // group_size,
        unallocated_fraction=1.0 - min(sum(shares.values()), 1.0),
        self_queue_size=_count(own) // group_size,
        max_group_size=largest,
        env_weight=_weight(state, env),
    )


def _weight(state: Snapshot, env: Environment) -> float:
    peers = [peer for peer in state.environments.values() if peer.connected or peer.id == env.id]
    total = sum(peer.asked.max_token_length * peer.asked.weight for peer in peers)
    return max(LEAST_WEIGHT, env.asked.max_token_length * env.asked.weight / total if total > 0 else 0.0)


def _count(sizes: Mapping[int, int]) -> int:
    return sum(size * count for size, count in sizes.items())
