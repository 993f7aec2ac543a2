"""Keeps curves, samples, evaluations and the ends of logs in ConfigMaps of a run, so that they outlive its pods.

Bounded in time: no run waits for a node that does not answer. Of a run that has ended it is asked again for a while.
The ConfigMaps are not cached: each is read once, and written only when it changes.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Collection
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
from clotho.cluster.pod_logs import PodLogs
from clotho.cluster.store import run_key
from clotho.plan.model import Event, Plan
from clotho.plan.ownership import is_owned_by, owner_in_words
from clotho.plan.pods import Pod
from clotho.plan.run.leaving import (
    first_trainer,
    history_in_log,
    is_ending,
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
RETRY_SECONDS: Final = 180.0  # longer than a node that let a request time out is left alone
RETRY_PAUSE_SECONDS: Final = 10.0


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
    missing: frozenset[str] = frozenset()  # pods of a run that has ended, which are to be asked again
    missing_until: float = 0.0  # when that ends
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # what was fetched first is written first


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
        self._logs = PodLogs(client)

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
        async with known.turn:
            if (found := await self._fetch(run, trainer)) is not None:
                await self._keep_history(run, found)

    async def keep(
        self, run: TrainingRun, planned: Plan[TrainingRunStatus], pods: Collection[Pod], report: Progress | None
    ) -> float | None:
        """Before the plan is carried out: what the pods that it deletes, or that have ended for good, leave behind.

        Seconds until the pods of a run that has ended are to be asked for the rest, None when nothing is missing.
        """
        known, gone = self._of(run), leaving(run, planned, pods)
        late = () if run.metadata.is_being_deleted else [pod for pod in pods if pod.uid in known.missing]
        last = report if is_ending(run, planned) else None
        if not gone and not late and last is None:
            return None
        asked = {pod.uid: pod for pod in (*gone, *late)}
        async with known.turn:
            missing = await self._keep_from(run, asked, last)
        stays = is_ending(run, planned) or run.status.is_finished
        return _until_retry(known, missing) if stays else None

    async def _keep_from(self, run: TrainingRun, pods: dict[str, Pod], last: Progress | None) -> frozenset[str]:
        """The uids of those that have more to tell, and did not."""
        trainer = first_trainer(pods.values())
        is_answering = trainer is not None and trainer.is_ready
        fetching = self._fetch(run, trainer) if trainer is not None and is_answering else _nothing()
        found, logs = await asyncio.gather(fetching, self._logs.read(pods.values()))
        missing = logs.missing
        if trainer is not None and found is None:
            found = history_in_log(logs.texts.get((trainer.uid, MAIN), ""))
            if is_answering and found == History():  # it is ending just now: its last line is still to come
                missing |= {trainer.uid}
        if not await self._keep_history(run, found or History(), last) and trainer is not None:
            missing |= {trainer.uid}
        kept = [kept_log(run, pods[uid], name, text) for (uid, name), text in logs.texts.items()]
        await self._keep_logs(run, kept)
        return missing

    async def _fetch(self, run: TrainingRun, trainer: Pod) -> History | None:
        key = run_key(run.metadata)
        address, token = trainer.status.pod_ip, self._token(key)
        try:
            body = await http_get(address, TRAINER_STATUS_PORT, history.PATH, token, self._timeout)
            return history.decode(body)
        except (ProbeFailed, msgspec.MsgspecError) as error:
            log.info("the history of the run was not fetched: %s", error, extra={"run": str(key)})
            return None

    async def _keep_history(self, run: TrainingRun, found: History, last: Progress | None = None) -> bool:
        """Whether it is kept, or never can be. A report of all steps needs nothing of what is there already."""
        known = self._of(run)
        is_known = history_name(run.metadata) in known.written
        is_whole = found.series.steps[:1] == (1,) and found.samples
        is_short = last is not None and last.step > max(found.series.steps, default=known.step)
        if found == History() and not is_short:
            return True
        try:
            old = History() if is_whole and is_known else read_history(await self._read(run, history_name))
            whole = with_last_step(history.merged(old, found), last)
            if whole != History():
                await self._write(run, history_name(run.metadata), history_data(whole))
                known.step = max(whole.series.steps, default=0)
        except ApiError as error:
            log.warning("the history of the run was not kept: %s", error, extra={"run": str(run_key(run.metadata))})
            return not isinstance(error, Transient)
        return True

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


async def _nothing() -> None:
    return None


def _until_retry(known: _Known, missing: frozenset[str]) -> float | None:
    now = time.monotonic()
    if not known.missing:
        known.missing_until = now + RETRY_SECONDS
    known.missing = missing if now < known.missing_until else frozenset()
    return RETRY_PAUSE_SECONDS if known.missing else None
