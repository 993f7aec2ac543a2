"""Secrets, ConfigMaps, claims and storage classes that a run names."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from clotho.api.training_run import TrainingRun
from clotho.plan.model import Reference
from clotho.plan.references import LOOK_AGAIN_SECONDS, WAITING_FOR_REFERENCES, absence
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.times import later
from clotho.render.containers import ENVIRONMENT_CODE_PATH
from clotho_contract.entries import file_of
from clotho_contract.names import DATASET_PATH


def references(run: TrainingRun) -> tuple[Reference, ...]:
    return tuple(each for each in (*_references(run), *_files(run)) if each.name)


def _references(run: TrainingRun) -> Iterator[Reference]:
    spec = run.spec
    yield Reference("PersistentVolumeClaim", spec.storage.claim_name, "storage.claimName")
    if not spec.storage.ephemeral:
        yield Reference("StorageClass", spec.storage.storage_class_name, "storage.storageClassName")
    yield Reference("PersistentVolumeClaim", spec.model.claim_name, "model.claimName")
    yield Reference("Secret", spec.model.secret_name, "model.secretName")
    yield Reference("Secret", spec.trainer.tinker_secret_name, "trainer.tinkerSecretName")
    if spec.tracking.wandb is not None:
        yield Reference("Secret", spec.tracking.wandb.secret_name, "tracking.wandb.secretName")
    if spec.inline is not None:
        for name, source in (("dataset", spec.inline.dataset), ("code", spec.inline.code)):
            yield Reference("ConfigMap", source.config_map_name, f"inline.{name}.configMapName")
            yield Reference("PersistentVolumeClaim", source.claim_name, f"inline.{name}.claimName")
    resolved = {each.name: each for each in run.status.resolved}
    for asked in spec.environments:
        found = resolved.get(asked.name, asked)
        yield Reference("ConfigMap", found.config_map_name, f"environments.{asked.name}.configMapName")
        yield Reference("Secret", found.secret_name, f"environments.{asked.name}.secretName")
        claim = found.cache_claim_name
        yield Reference("PersistentVolumeClaim", claim, f"environments.{asked.name}.cacheClaimName")


def _files(run: TrainingRun) -> Iterator[Reference]:
    """That come in a ConfigMap, where the spec alone decides which one is read."""
    if run.spec.inline is not None and run.spec.inline.dataset.path:
        dataset = run.spec.inline.dataset
        path = PurePosixPath(DATASET_PATH, dataset.path)
        if path.is_relative_to(DATASET_PATH):
            file = str(path.relative_to(DATASET_PATH))
            yield Reference("ConfigMap", dataset.config_map_name, "inline.dataset.path", file)
    resolved = {each.name: each for each in run.status.resolved}
    for asked in run.spec.environments:
        found = resolved.get(asked.name, asked)
        path = PurePosixPath(file_of(found.entry))
        if not found.template and path.is_relative_to(ENVIRONMENT_CODE_PATH):
            file = str(path.relative_to(ENVIRONMENT_CODE_PATH))
            yield Reference("ConfigMap", found.config_map_name, f"environments.{asked.name}.entry", file)


def wait_for_references(situation: Situation) -> Decision | None:
    missing = situation.observed.missing
    if not missing:
        return None
    return Decision(
        phase="Pending",
        reason=WAITING_FOR_REFERENCES,
        message=absence(missing),
        components=situation.components,
        wake_at=later(situation.now, LOOK_AGAIN_SECONDS),
    )
