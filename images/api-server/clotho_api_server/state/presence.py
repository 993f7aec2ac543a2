"""Which environments are alive: any request that carries an environment's id is its heartbeat."""

from collections.abc import Iterable, Mapping

from clotho_api_server.state.shares import Environment


class Presence:
    """Clock readings come from the caller. After a restart everyone gets the full time to be heard again."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._started = now
        self._heard: dict[int, float] = {}

    def record_heartbeat(self, env_id: int, now: float) -> None:
        self._heard[env_id] = now

    def silence(self, env_id: int, now: float) -> float:
        return now - self._heard.get(env_id, self._started)

    def overdue(self, environments: Mapping[int, Environment], now: float) -> Iterable[int]:
        return [env.id for env in environments.values() if env.connected and self.silence(env.id, now) > self._timeout]
