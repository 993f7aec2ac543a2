"""The run's config file, the one thing that all its pods read."""

import hashlib
from typing import TypeVar

import msgspec

from clotho.api.lockable import ENVIRONMENT_CONFIG
from clotho.api.names import API_SERVER, INFERENCE, TRAINER
from clotho.api.training_run import EnvironmentSpec, InlineSpec, Storage, TrainingRun
from clotho.render.names import host_name, run_id
from clotho.render.quantity import quantity_bytes
from clotho_contract import config as contract
from clotho_contract.inline import Code, Dataset, Inline
from clotho_contract.names import API_SERVER_PORT, INFERENCE_PORT, POLICY_PORT
from clotho_contract.settings import S3, Inference, Model, Settings, Wandb


def run_config(run: TrainingRun, cluster_domain: str) -> contract.RunConfig:
    spec, metadata = run.spec, run.metadata
    wandb, policy = spec.tracking.wandb, run.status.policy
    locked = tuple(sorted(policy.locked.get(ENVIRONMENT_CONFIG, ()))) if policy is not None else ()
    topology = spec.topology
    ranks = topology.inference_urls(lambda index: host_name(metadata, TRAINER, cluster_domain, index))
    return contract.RunConfig(
        run=contract.RunIdentity(name=metadata.name, namespace=metadata.namespace, id=run_id(metadata)),
        endpoints=contract.Endpoints(
            api_server=f"http://{host_name(metadata, API_SERVER, cluster_domain)}:{API_SERVER_PORT}",
            inference=ranks[0],
            inference_ranks=ranks if topology.size > 1 else (),
            serving_ranks=spec.serving_ranks,
            inference_replicas=tuple(
                f"http://{host_name(metadata, INFERENCE, cluster_domain, index)}:{INFERENCE_PORT}"
                for index in range(spec.inference.replicas)
            ),
            policy=f"http://{host_name(metadata, TRAINER, cluster_domain)}:{POLICY_PORT}"
            if spec.inference.replicas
            else "",
        ),
        model=_as(Model, spec.model),
        training=spec.training,
        environments=tuple(_environment(environment, locked) for environment in spec.environments),
        inline=spec.inline and _inline(spec.inline),
        export=spec.export,
        inference=_as(Inference, spec.inference),
        api_server=contract.ApiServerConfig(max_queue_bytes=_queue_limit(spec.storage)),
        wandb=wandb and _as(Wandb, wandb),
        tensorboard=spec.tracking.tensorboard,
        stall_after_seconds=spec.stall.after_seconds,
        sharding=spec.trainer.sharding,
        s3=spec.storage.s3 and _as(S3, spec.storage.s3),
        resume_from=spec.storage.resume_from,
        continues_other_runs=bool(spec.storage.claim_name or spec.storage.resume_from),
    )


S = TypeVar("S", bound=Settings)


def _as(kind: type[S], wider: S) -> S:
    """What the pods read of it, without the fields that are for the operator alone."""
    return kind(**{name: getattr(wider, name) for name in kind.__struct_fields__})


def _inline(spec: InlineSpec) -> Inline:
    pods = _as(Inline, spec)
    return msgspec.structs.replace(pods, dataset=_as(Dataset, spec.dataset), code=_as(Code, spec.code))


def _queue_limit(storage: Storage) -> int:
    """Two fifths of the API server's volume; the rest is for batches trained since the last checkpoint."""
    return max(1, quantity_bytes(storage.api_server_size) * 2 // 5)


def _environment(spec: EnvironmentSpec, locked: tuple[str, ...]) -> contract.EnvironmentConfig:
    return contract.EnvironmentConfig(
        name=spec.name,
        weight=spec.weight,
        min_batch_allocation=spec.min_batch_allocation,
        entry=spec.entry or spec.name,
        config=spec.config,
        locked=locked,
    )


def fingerprint(config: Settings) -> str:
    """Cheap to compare, so that a config is only rendered and written when it differs."""
    return hashlib.blake2b(msgspec.json.encode(config, order="sorted"), digest_size=8).hexdigest()
