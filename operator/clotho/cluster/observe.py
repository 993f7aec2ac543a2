"""Gathers what is known of one object of ours into what its planner reads."""

import asyncio

import msgspec

from clotho.api.environment import AnyEnvironment, Environment
from clotho.api.inference_tests import AnyTest, InferenceTest
from clotho.api.training_run import TrainingRun
from clotho.cluster.admissions import Admissions
from clotho.cluster.apply import Writer
from clotho.cluster.cache import Key
from clotho.cluster.client import ApiClient
from clotho.cluster.descriptions import Descriptions
from clotho.cluster.files import file_names, files_hash
from clotho.cluster.kueue import Kueue
from clotho.cluster.probe import Answers
from clotho.cluster.store import AnyRun, Store, run_key
from clotho.plan.environments import EnvironmentSeen
from clotho.plan.inference_tests import TestSeen, references_of_test
from clotho.plan.model import ObjectKey, Observed, Reference
from clotho.plan.pods import Pod
from clotho.plan.run.references import references
from clotho.render.names import base_name

_PLURALS = {"Secret": "secrets", "ConfigMap": "configmaps", "PersistentVolumeClaim": "persistentvolumeclaims"}
_STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


class Observer:
    """Secrets are not watched, since the right to watch them is the right to read all of them: each run's own is read
    once; later changes come from our own writes or from `check_secret`."""

    def __init__(
        self,
        client: ApiClient,
        store: Store,
        writer: Writer,
        answers: Answers,
        descriptions: Descriptions,
        admissions: Admissions,
        kueue: Kueue,
    ) -> None:
        self._client, self._store, self._writer, self._answers = client, store, writer, answers
        self._descriptions = descriptions
        self.admissions = admissions
        self._kueue = kueue
        self._secret_known: set[str] = set()  # uids of runs

    async def observe(self, key: Key, run: AnyRun) -> Observed:
        await self._writer.settle(key)
        uid = run.metadata.uid
        if uid not in self._secret_known:
            if run.status.observed_generation >= 0:  # an untouched run has none yet: save the question
                await self._writer.refresh(key.namespace, ObjectKey("Secret", base_name(run.metadata)))
            self._secret_known.add(uid)
        pods = self._store.pods_of(key, uid)
        return Observed(
            pods=pods,
            objects=self._store.objects_of(key, uid),
            probes=self._answers.of(key, uid),
            refused=self._writer.refusals(run),
            environments=self._environments(run),
            catalogue=self._store.environment_names(key.namespace),
            is_unchecked=not pods and not self._writer.has_validated(run),
            missing=await self._missing(run, pods),
            policies=self._store.policies_in(key.namespace),
            runs_ahead=self.admissions.ahead_of(run),
            kueue=await self._kueue.observe(key, run),
        )

    async def _missing(
        self, owner: AnyRun | AnyTest, pods: tuple[Pod, ...], environment: AnyEnvironment | None = None
    ) -> tuple[Reference, ...]:
        """Only whether they exist: the contents of others' Secrets are not read."""
        if pods or owner.status.is_finished or owner.metadata.is_being_deleted:
            return ()
        match owner:
            case TrainingRun():
                named = references(owner)
            case InferenceTest():
                named = references_of_test(owner, environment)
            case _:
                return ()
        namespace = owner.metadata.namespace
        found = await asyncio.gather(*(self._absence(each, namespace) for each in named))
        return tuple(each for each in found if each is not None)

    async def _absence(self, named: Reference, namespace: str) -> Reference | None:
        """None where it exists; so do the files of a ConfigMap that does not, which is missing itself."""
        if not named.file:
            return None if await self._client.exists(_path(named, namespace)) else named
        files = await file_names(self._client, namespace, named.name)
        is_there = files is None or named.file in files
        return None if is_there else msgspec.structs.replace(named, files=files)

    def _environments(self, run: AnyRun) -> dict[str, AnyEnvironment]:
        if not isinstance(run, TrainingRun):
            return {}
        named = {each.environment_name for each in run.spec.environments if each.environment_name}
        found = {name: self._store.environments.get(run.metadata.namespace, name) for name in named}
        return {name: environment for name, environment in found.items() if environment is not None}

    async def observe_environment(self, key: Key, environment: AnyEnvironment) -> EnvironmentSeen:
        await self._writer.settle(key)
        uid = environment.metadata.uid
        config_map = environment.spec.config_map_name if isinstance(environment, Environment) else ""
        return EnvironmentSeen(
            pod=next(iter(self._store.pods_of(key, uid)), None),
            objects=self._store.objects_of(key, uid),
            files=await files_hash(self._client, key.namespace, config_map),
            description=self._descriptions.answer(key),
            refused=self._writer.refusals(environment),
            policies=self._store.policies_in(key.namespace),
        )

    async def observe_test(self, key: Key, test: AnyTest) -> TestSeen:
        await self._writer.settle(key)
        uid = test.metadata.uid
        name = test.spec.environment_name if isinstance(test, InferenceTest) else ""
        environment = self._store.environments.get(key.namespace, name) if name else None
        pods = self._store.pods_of(key, uid)
        return TestSeen(
            pods=pods,
            objects=self._store.objects_of(key, uid),
            environment=environment,
            missing=await self._missing(test, pods, environment),
            refused=self._writer.refusals(test),
            policies=self._store.policies_in(key.namespace),
        )

    async def check_secret(self, run: AnyRun) -> None:
        """Read it again: it may have been edited or deleted by hand."""
        namespace, name = run.metadata.namespace, base_name(run.metadata)
        known = self._store.secrets.get(namespace, name)
        if known is None:
            return
        await self._writer.refresh(namespace, ObjectKey("Secret", name))
        if self._store.secrets.get(namespace, name) != known:
            self._store.changed(run_key(run.metadata))

    def forget(self, key: Key) -> None:
        """The object is gone, and a run's Secret with it."""
        self._writer.forget(key)
        for secret in tuple(self._store.secrets.belonging_to(key)):
            self._store.secrets.remove(secret.metadata)
        self._answers.forget(key)
        self._descriptions.forget(key)


def _path(reference: Reference, namespace: str) -> str:
    if reference.kind == "StorageClass":
        return f"{_STORAGE_CLASSES}/{reference.name}"
    return f"/api/v1/namespaces/{namespace}/{_PLURALS[reference.kind]}/{reference.name}"
