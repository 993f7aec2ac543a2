"""What an Event of ours carries."""

from typing import Any

from clotho.cluster.events import EventPoster
from clotho.plan.model import Event
from rig.objects import a_run


class Client:
    def __init__(self) -> None:
        self.created: list[tuple[str, dict[str, Any]]] = []

    async def create(self, path: str, body: dict[str, Any], _: object) -> None:
        self.created.append((path, body))


async def test_events_have_the_times_that_kubectl_sorts_by() -> None:
    client = Client()
    poster = EventPoster(client, "operator-0")  # type: ignore[arg-type]
    poster.post(a_run(), Event(type="Warning", reason="Restarting", message="x" * 2000))
    await poster.drain(5)
    ((path, body),) = client.created
    assert path == "/api/v1/namespaces/ns/events"
    assert body["involvedObject"]["kind"] == "TrainingRun"
    assert body["firstTimestamp"] == body["lastTimestamp"] == f"{body['eventTime'][:19]}Z"
    assert body["count"] == 1
    assert len(body["message"]) == 1024
