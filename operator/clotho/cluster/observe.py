"""Gathers what is known of one run into the planner's `Observed`."""

from clotho.cluster.apply import Writer
from clotho.cluster.cache import RunKey
from clotho.cluster.places import Places
from clotho.cluster.probe import Prober
from clotho.cluster.store import AnyRun, Store
from clotho.plan.model import ObjectKey, Observed
from clotho.render.names import base_name


class Observer:
    """Secrets are not watched, so each run's own is read once; later changes come from our own writes or `recheck`."""

    def __init__(self, store: Store, writer: Writer, prober: Prober, places: Places) -> None:
        self._store, self._writer, self._prober = store, writer, prober
        self.places = places
        self._secret_known: set[str] = set()  # uids of runs

    async def observe(self, key: RunKey, run: AnyRun) -> Observed:
        await self._writer.settle(key)
        uid = run.metadata.uid
        if uid not in self._secret_known:
            if run.status.observed_generation >= 0:  # an untouched run has none yet: save the question
                await self._writer.refresh(key.namespace, ObjectKey("Secret", base_name(run.metadata)))
            self._secret_known.add(uid)
        return Observed(
            pods=self._store.pods_of(key, uid),
            objects=self._store.objects_of(key, uid),
            probes=self._prober.answers(key),
            refused=self._writer.refusals(run),
            policies=self._store.policies_in(key.namespace),
            runs_ahead=self.places.ahead_of(run),
        )

    def recheck(self) -> None:
        """Somebody may have deleted a Secret: read each again when its run is next looked at."""
        self._secret_known.clear()

    def forget(self, key: RunKey) -> None:
        """The run is gone, and its Secret with it."""
        self._writer.forget(key)
        for secret in tuple(self._store.secrets.of_run(key)):
            self._store.secrets.remove(secret.metadata)
        self._prober.forget(key)
