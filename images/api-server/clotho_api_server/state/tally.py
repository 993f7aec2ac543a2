"""Running counts of what waits in the queue, so that no query over the groups is needed."""

from collections import Counter

from clotho_api_server.state.batching import EnvId


class QueueTally:
    """Groups that wait, counted by environment and size; their number and bytes. Parts in the buffer add bytes only."""

    def __init__(self) -> None:
        self.by_environment: dict[EnvId, Counter[int]] = {}
        self.groups = 0
        self.bytes = 0

    def add(self, env_id: EnvId, size: int, count: int = 1) -> None:
        self.by_environment.setdefault(env_id, Counter())[size] += count
        self.groups += count

    def remove(self, env_id: EnvId, size: int) -> None:
        sizes = self.by_environment[env_id]
        sizes[size] -= 1
        if not sizes[size]:
            del sizes[size]
        if not sizes:
            del self.by_environment[env_id]
        self.groups -= 1

    def copy(self) -> dict[EnvId, dict[int, int]]:
        return {env_id: dict(sizes) for env_id, sizes in self.by_environment.items()}
