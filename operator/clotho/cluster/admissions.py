"""Admission of runs where a policy limits the active ones: counted by statuses and by status writes under way."""

from collections.abc import Iterator
from contextlib import contextmanager

from clotho.api.status import TrainingRunStatus
from clotho.cluster.store import AnyRun, Store, run_key
from clotho.plan.run.queueing import is_admitted, is_queueing, limits_active_runs, runs_ahead


class Admissions:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._admitting: set[str] = set()  # uids of runs

    def ahead_of(self, run: AnyRun) -> int:
        namespace = run.metadata.namespace
        is_counted = any(map(limits_active_runs, self._store.policies_in(namespace)))
        if not is_counted or is_admitted(run.status):
            return 0
        return runs_ahead(run, self._store.runs_in(namespace), self._admitting)

    @contextmanager
    def while_writing(self, run: AnyRun, status: TrainingRunStatus | None) -> Iterator[None]:
        """An admission counts while it is being written; when a run gives up its own, queued runs are reconciled."""
        uid, had_claim = run.metadata.uid, _has_claim(run)
        if status is not None and is_admitted(status):
            self._admitting.add(uid)
        try:
            yield
        finally:
            self._admitting.discard(uid)
        now = self._store.run(run_key(run.metadata))
        if had_claim and (now is None or not _has_claim(now)):
            self.reconcile_queued(run.metadata.namespace)

    def reconcile_queued(self, namespace: str) -> None:
        for run in self._store.runs_in(namespace):
            if run.status.queued_since is not None:
                self._store.changed(run_key(run.metadata))


def _has_claim(run: AnyRun) -> bool:
    return is_admitted(run.status) or is_queueing(run)
