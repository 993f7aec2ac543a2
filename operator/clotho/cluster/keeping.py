"""Keeps curves, samples, evaluations and the ends of logs in ConfigMaps of a run, so that they outlive its pods.

Best effort and bounded in time: no run waits for a node that does not answer. The ConfigMaps are not cached: each is
read once, and written only when it changes.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from clotho.api.history import KeptLog, history_data, log_data, read_history, read_logs
from clotho.api.metadata import Metadata
from clotho.api.names import FIELD_MANAGER
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRun
from clotho.cluster.cache import Key
from clotho.cluster.client import MERGE, ApiClient
from clotho.cluster.outcomes import ApiError, NotFound, Transient
from clotho.cluster.pod_http import ProbeFailed, http_get
from clotho.cluster.store import run_key
from clotho.plan.model import Event, Plan
from clotho.plan.ownership import is_owned_by, owner_in_words
from clotho.plan.pods import Pod
from clotho.plan.run.leaving import (
    containers_with_logs,
    first_trainer,
    history_in_log,
    is_fetch_due,
    kept_log,
    leaving,
    logs_kept,
    with_last_step,
)
from clotho.render.containers import MAIN
from clotho.render.metadata import object_metadata
from clotho.render.names import history_name, logs_name
from clotho_contract import history
from clotho_contract.history import History
from clotho_contract.names import TRAINER_STATUS_PORT
from clotho_contract.progress import Progress

log = logging.getLogger(__name__)
TAIL_LINES: Final = "250"  # a line of more than 16 KiB counts as several on the node
MOST_READ_BYTES: Final = 4 * 1024 * 1024
LOG_SECONDS: Final = 3.0
SILENT_NODE_SECONDS: Final = 60.0


class _ConfigMap(Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = field(default_factory=dict)


class _Known(Struct):
    """What this process has fetched and written of a run."""

    uid: str
    step: int = 0  # the last that is kept
    asked: int = 0  # the step at which the trainer was last asked; one of an older release has no history
    asked_at: datetime | None = None
    written: dict[str, str] = field(default_factory=dict)  # digests of ConfigMaps, by name
    announced: int = 0  # attempt whose logs an Event names


class Keeper:
    """`token(key)`: what requests to the pods of a run carry; `post(run, event)` posts an Event."""

    def __init__(
        self,
        client: ApiClient,
        token: Callable[[Key], str | None],
        post: Callable[[TrainingRun, Event], None],
        may_write: Callable[[], bool],
        timeout_seconds: float,
    ) -> None:
        self._client, self._token, self._post, self._may_write = client, token, post, may_write
        self._timeout = timeout_seconds
        self._known: dict[Key, _Known] = {}
        self._silent_nodes: dict[str, float] = {}  # until when they are not asked

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)

    async def follow(self, run: TrainingRun, trainer: Pod | None, report: Progress | None) -> None:
        """While the run trains: fetch its history now and then."""
        known = self._of(run)
        reached = report.step if report is not None else 0
        now = datetime.now(UTC)
        if trainer is None or not trainer.is_ready or not is_fetch_due(run, reached, known.asked, known.asked_at, now):
            return
        known.asked, known.asked_at = reached, now
        await self._keep_history(run, await self._fetch(run, trainer))

    async def keep(
        self, run: TrainingRun, planned: Plan[TrainingRunStatus], pods: Iterable[Pod], report: Progress | None
    ) -> None:
        """Before the plan is carried out: what the pods that it deletes, or that have ended for good, leave behind."""
        gone = leaving(run, planned, pods)
        is_ending = planned.status is not None and planned.status.is_finished
        if not gone and not (is_ending and report is not None and not run.status.is_finished):
            return
        trainer = first_trainer(gone)
        is_answering = trainer is not None and trainer.is_ready
        fetching = self._fetch(run, trainer) if trainer is not None and is_answering else _nothing()
        found, texts = await asyncio.gather(fetching, self._read_logs(run, gone))
        if trainer is not None and not is_answering:
            found = history_in_log(texts.get((trainer.uid, MAIN), ""))
        await self._keep_history(run, found, last=report if is_ending else None)
        by_uid = {pod.uid: pod for pod in gone}
        await self._keep_logs(run, [kept_log(run, by_uid[uid], name, text) for (uid, name), text in texts.items()])

    async def _fetch(self, run: TrainingRun, trainer: Pod) -> History:
        key = run_key(run.metadata)
        address, token = trainer.status.pod_ip, self._token(key)
        try:
            body = await http_get(address, TRAINER_STATUS_PORT, history.PATH, token, self._timeout)
            return history.decode(body)
        except (ProbeFailed, msgspec.MsgspecError) as error:
            log.info("the history of the run was not fetched: %s", error, extra={"run": str(key)})
            return History()

    async def _keep_history(self, run: TrainingRun, found: History, last: Progress | None = None) -> None:
        """A report of all steps needs nothing of what is there already."""
        known = self._of(run)
        is_known = history_name(run.metadata) in known.written
        is_whole = found.series.steps[:1] == (1,) and found.samples
        is_short = last is not None and last.step > max(found.series.steps, default=known.step)
        if found == History() and not is_short:
            return
        try:
            old = History() if is_whole and is_known else read_history(await self._read(run, history_name))
            whole = with_last_step(history.merged(old, found), last)
            if whole != History():
                await self._write(run, history_name(run.metadata), history_data(whole))
                known.step = max(whole.series.steps, default=0)
        except ApiError as error:
            log.warning("the history of the run was not kept: %s", error, extra={"run": str(run_key(run.metadata))})

    async def _keep_logs(self, run: TrainingRun, logs: list[KeptLog]) -> None:
        logs = [each for each in logs if each.text]
        if not logs:
            return
        try:
            old = await self._read(run, logs_name)
            kept = {each.key: each for each in (*read_logs(old), *logs)}
            data: dict[str, str | None] = {**log_data(tuple(kept.values()))}
            dropped = {key: None for key in old if key not in data}
            await self._write(run, logs_name(run.metadata), data | dropped)
        except ApiError as error:
            log.warning("logs were not kept: %s", error, extra={"run": str(run_key(run.metadata))})
            return
        newest, known = max(each.attempt for each in logs), self._of(run)
        if newest > known.announced:
            known.announced = newest
            self._post(run, logs_kept(run, newest))

    async def _read_logs(self, run: TrainingRun, pods: Iterable[Pod]) -> dict[tuple[str, str], str]:
        """The ends of the logs by the pod's uid and the container; those that cannot be read are missing."""
        wanted = [(pod, each.name) for pod in pods for each in containers_with_logs(pod)]
        texts = await asyncio.gather(*(self._read_log(run, pod, name) for pod, name in wanted))
        each = zip(wanted, texts, strict=True)
        return {(pod.uid, name): text for (pod, name), text in each if text}

    async def _read_log(self, run: TrainingRun, pod: Pod, container: str) -> str:
        node = pod.spec.node_name
        if time.monotonic() < self._silent_nodes.get(node, 0.0):
            return ""
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.name}/log"
        body = b""
        try:
            async with asyncio.timeout(LOG_SECONDS):
                async for piece in self._client.stream(path, {"container": container, "tailLines": TAIL_LINES}):
                    body += piece
                    if len(body) > MOST_READ_BYTES:
                        break
        except (TimeoutError, ApiError) as error:
            if isinstance(error, TimeoutError | Transient):
                self._silent_nodes[node] = time.monotonic() + SILENT_NODE_SECONDS
            problem = str(error) or f"no answer within {LOG_SECONDS:g} s"
            log.info("the log of %s was not kept: %s", pod.name, problem, extra={"run": str(run_key(run.metadata))})
        return body.decode(errors="replace")

    async def _read(self, run: TrainingRun, name_of: Callable[[Metadata], str]) -> dict[str, str]:
        """Its data; empty where it does not exist. One of another owner is left alone."""
        name = name_of(run.metadata)
        try:
            found = await self._client.get(_path(run, name), _ConfigMap)
        except NotFound:
            return {}
        if not is_owned_by(found.metadata, run.metadata):
            raise ApiError(f"write {name}", f"it exists and {owner_in_words(found.metadata)}")
        return found.data

    async def _write(self, run: TrainingRun, name: str, data: dict[str, Any]) -> None:
        known = self._of(run)
        if not self._may_write():
            return
        digest = hashlib.blake2b(msgspec.json.encode(data), digest_size=16).hexdigest()
        if known.written.get(name) == digest:
            return
        try:
            await self._client.patch(_path(run, name), {"data": data}, _ConfigMap, MERGE, fieldManager=FIELD_MANAGER)
        except NotFound:
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": object_metadata(run.metadata, name),
                "data": {key: value for key, value in data.items() if value is not None},
            }
            await self._client.create(_path(run), body, _ConfigMap, fieldManager=FIELD_MANAGER)
        known.written[name] = digest

    def _of(self, run: TrainingRun) -> _Known:
        key = run_key(run.metadata)
        known = self._known.get(key)
        if known is None or known.uid != run.metadata.uid:
            known = self._known[key] = _Known(uid=run.metadata.uid)
        return known


def _path(run: TrainingRun, name: str = "") -> str:
    folder = f"/api/v1/namespaces/{run.metadata.namespace}/configmaps"
    return f"{folder}/{name}" if name else folder


async def _nothing() -> History:
    return History()
