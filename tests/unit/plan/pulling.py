"""A pod whose image is on its way to its node."""

from datetime import datetime
from typing import Any


def pulling(image: str, since: datetime) -> dict[str, Any]:
    """Fields of its status: volumes and network are ready, and the kubelet prepares the container."""
    prepared = {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": since.isoformat()}
    main = {"name": "main", "image": image, "state": {"waiting": {"reason": "ContainerCreating"}}}
    return {"conditions": [prepared], "containerStatuses": [main]}
