"""The last evaluation of a run's environments: from its status, or from their pods through the API server."""

import asyncio
import re
from typing import Any, Final

from clotho.cluster.outcomes import ApiError
from clotho.workspace.objects import Workspace
from clotho_contract.names import ENVIRONMENT_STATUS_PORT

LIMIT_SECONDS: Final = 3.0
SIZE_LIMIT: Final = 1024 * 1024
_MEASURE: Final = re.compile(
    rb'^clotho_environment_evaluation\{measure="(?:eval/)?percent_correct"\} (\S+)$', re.MULTILINE
)


async def percent_correct(workspace: Workspace, run: dict[str, Any]) -> float | None:
    """Of the first environment that has one, in the run's status or in its pod's metrics; None where there is none."""
    for each in run.get("status", {}).get("evaluations", ()):
        if each["figure"].removeprefix("eval/") == "percent_correct":
            return float(each["value"])
    places = (run.get("status", {}).get("components") or {}).get("environments", ())
    for place in places:
        if place.get("ready") and place.get("pod"):
            found = await _ask(workspace, place["pod"])
            if found is not None:
                return found
    return None


async def _ask(workspace: Workspace, pod: str) -> float | None:
    text = b""
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            path = workspace.core(f"pods/{pod}:{ENVIRONMENT_STATUS_PORT}/proxy/metrics")
            async for piece in workspace.client.stream(path, {}):
                text += piece
                if len(text) > SIZE_LIMIT:
                    return None
        found = _MEASURE.search(text)
        return float(found[1]) if found else None
    except (ApiError, TimeoutError, ValueError):
        return None
