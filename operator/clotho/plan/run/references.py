"""Secrets, ConfigMaps, claims and storage classes that a run names: looked up before a pod is made, since a pod that
waits for one of them on its node holds its GPUs meanwhile."""

from collections.abc import Iterator
from typing import Final

from clotho.api.training_run import TrainingRun
from clotho.plan.model import Reference
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.times import later

LOOK_AGAIN_SECONDS: Final = 10  # none of them is watched


def references(run: TrainingRun) -> tuple[Reference, ...]:
    return tuple(each for each in _references(run) if each.name)


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


def wait_for_references(situation: Situation) -> Decision | None:
    missing = situation.observed.missing
    if not missing:
        return None
    listed = ", ".join(f"{each.kind} {each.name} ({each.field})" for each in missing)
    is_one = len(missing) == 1
    where = "cluster" if any(each.kind == "StorageClass" for each in missing) else "namespace"
    return Decision(
        phase="Pending",
        reason="WaitingForReferences",
        message=f"Waiting for {listed}: {'it does' if is_one else 'they do'} not exist in this {where}.",
        components=situation.components,
        wake_at=later(situation.now, LOOK_AGAIN_SECONDS),
    )
