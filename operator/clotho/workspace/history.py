"""What is kept of a run whose pods may be gone: curves, samples, evaluations and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from clotho.api.history import KeptLog, read_history, read_logs
from clotho.api.metadata import Metadata
from clotho.api.names import API_SERVER, ENVIRONMENT, INFERENCE, TRAINER
from clotho.cluster.outcomes import NotFound
from clotho.render.names import history_name, logs_name
from clotho.workspace.objects import Workspace
from clotho_contract.history import History


class _ConfigMap(Struct, frozen=True):
    data: dict[str, str] = field(default_factory=dict)


async def history_of(workspace: Workspace, run: Mapping[str, Any]) -> History:
    """Empty where nothing is kept yet."""
    return read_history(await _data(workspace, history_name(_metadata(run))))


async def kept_logs_of(workspace: Workspace, run: Mapping[str, Any]) -> tuple[KeptLog, ...]:
    """Oldest attempt first."""
    return read_logs(await _data(workspace, logs_name(_metadata(run))))


def component_of_title(title: str) -> str:
    """`trainer-1` is a log of the trainer; one of none of the fixed components is an environment's."""
    first = title.rpartition("-")[0] or title
    return next((each for each in (TRAINER, API_SERVER, INFERENCE) if each in (first, title)), ENVIRONMENT)


def of_last_attempt(logs: Sequence[KeptLog]) -> list[KeptLog]:
    last = max((log.attempt for log in logs), default=0)
    return [log for log in logs if log.attempt == last]


async def _data(workspace: Workspace, name: str) -> dict[str, str]:
    try:
        return (await workspace.client.get(workspace.core(f"configmaps/{name}"), _ConfigMap)).data
    except NotFound:
        return {}


def _metadata(run: Mapping[str, Any]) -> Metadata:
    return msgspec.convert(run["metadata"], Metadata)
