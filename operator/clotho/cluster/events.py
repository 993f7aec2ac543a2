"""Kubernetes Events about our objects: what `kubectl describe` shows. Best effort; a lost Event is no failure."""

import logging
from datetime import UTC, datetime
from typing import Any

from clotho.api.names import API_VERSION, FIELD_MANAGER
from clotho.cluster.background import Background
from clotho.cluster.client import ApiClient
from clotho.cluster.store import AnyOwner
from clotho.plan.model import Event

log = logging.getLogger(__name__)
MESSAGE_LIMIT = 1024  # the server's own


class EventPoster:
    """Posts in the background, so that no reconcile waits for an Event."""

    def __init__(self, client: ApiClient, instance: str) -> None:
        self._client, self._instance = client, instance
        self._background = Background()

    def post(self, about: AnyOwner, event: Event) -> None:
        self._background.start(self._post(about, event))

    async def drain(self, seconds: float) -> None:
        await self._background.drain(seconds)

    async def _post(self, about: AnyOwner, event: Event) -> None:
        namespace = about.metadata.namespace
        try:
            body = _body(about, event, self._instance, datetime.now(UTC))
            await self._client.create(f"/api/v1/namespaces/{namespace}/events", body, dict[str, Any])
        except Exception as error:  # nothing waits for this task: whatever it raised would be lost
            log.info(
                "event %s not posted: %s", event.reason, error, extra={"run": f"{namespace}/{about.metadata.name}"}
            )


def _body(about: AnyOwner, event: Event, instance: str, now: datetime) -> dict[str, Any]:
    metadata, moment = about.metadata, now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata.name[:200]}.", "namespace": metadata.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": about.kind,
            "namespace": metadata.namespace,
            "name": metadata.name,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MESSAGE_LIMIT],
        "action": event.reason,
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "firstTimestamp": moment,
        "lastTimestamp": moment,  # kubectl sorts by it
        "count": 1,
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": instance,
        "source": {"component": FIELD_MANAGER},
    }
