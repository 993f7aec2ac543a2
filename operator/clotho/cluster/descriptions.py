"""Fetches what describing pods report. Untrusted: bounded in time and size, and decoded strictly."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from clotho.api.environment import Environment
from clotho.cluster.cache import Key
from clotho.cluster.pod_http import ProbeFailed, http_get
from clotho.cluster.store import Store
from clotho.plan.model import Probe
from clotho.plan.pods import Pod
from clotho_contract import description
from clotho_contract.description import Description
from clotho_contract.names import ENVIRONMENT_STATUS_PORT

RETRY_SECONDS: Final = 2.0


class Descriptions:
    """Keeps the last answer of each Environment's pod until its Environment is gone."""

    def __init__(self, store: Store, timeout_seconds: float, on_failure: Callable[[str], None]) -> None:
        self._store, self._timeout, self._on_failure = store, timeout_seconds, on_failure
        self._answers: dict[Key, Probe[Description]] = {}

    def answer(self, key: Key) -> Probe[Description] | None:
        return self._answers.get(key)

    def forget(self, key: Key) -> None:
        self._answers.pop(key, None)

    def has_unprobed_pod(self, key: Key) -> bool:
        """Whether a pod is ready whose description was not read yet."""
        return self._reporting_pod(key) is not None

    def _reporting_pod(self, key: Key) -> Pod | None:
        environment = self._store.find(key)
        if not isinstance(environment, Environment):
            return None
        known = self._answers.get(key)
        pods = self._store.pods_of(key, environment.metadata.uid)
        return next(
            (
                pod
                for pod in pods
                if pod.is_ready
                and pod.status.pod_ip
                and not (known is not None and known.pod_uid == pod.uid and known.answer is not None)
            ),
            None,
        )

    async def probe(self, key: Key) -> tuple[bool, float | None]:
        """Whether there is something new, and in how many seconds to probe again."""
        pod = self._reporting_pod(key)
        if pod is None:
            return False, None
        try:
            body = await http_get(pod.status.pod_ip, ENVIRONMENT_STATUS_PORT, description.PATH, None, self._timeout)
            found = description.bounded(description.decode(body))
        except (ProbeFailed, msgspec.MsgspecError, RecursionError):
            self._on_failure("environment")
            return False, RETRY_SECONDS  # the pod has a deadline: it does not go on for ever
        self._answers[key] = Probe(pod_uid=pod.uid, taken_at=datetime.now(UTC), answer=found)
        return True, None
