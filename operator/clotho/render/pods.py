"""The pods of a run. All but the exporter's are created at once and wait inside for what they need."""

from collections.abc import Iterator
from typing import Final

from clotho.api.names import (
    API_SERVER,
    ATTEMPT_LABEL,
    ENVIRONMENT,
    ENVIRONMENT_LABEL,
    EXPORTER,
    GENERATION_ANNOTATION,
    INDEX_LABEL,
    INFERENCE,
    RESTARTS_LABEL,
    SERVING_LABEL,
    TRAINER,
    Component,
)
from clotho.api.training_run import EnvironmentSpec, TrainingRun
from clotho.render import frame, needs
from clotho.render.containers import (
    ENVIRONMENT_CODE_PATH,
    MAIN,
    Manifest,
    code_volumes,
    config_variable,
    from_secret,
    mount,
    own_token,
    port,
    probes,
    resources,
    value,
    variables_of,
)
from clotho.render.disk import scratch
from clotho.render.merge import has_containers
from clotho.render.metadata import object_metadata
from clotho.render.names import base_name, claim_name, host_name, pod_name, short_host_name
from clotho.render.objects import API_SERVER_KEYS, CONFIG_KEY, trainer_claim_name
from clotho.render.outside import outside_mounts, outside_variables, outside_volumes
from clotho.render.settings import RenderSettings
from clotho_contract.names import (
    API_SERVER_PORT,
    CHECK_VARIABLE,
    CHECKPOINT_STEP_VARIABLE,
    CODE_PATH,
    CONFIG_PATH,
    DATA_PATH,
    DATA_VARIABLE,
    DATASET_PATH,
    ENVIRONMENT_STATUS_PORT,
    ENVIRONMENT_TOKEN_VARIABLE,
    ENVIRONMENT_VARIABLE,
    INFERENCE_PORT,
    INFERENCE_TOKEN_VARIABLE,
    OPERATOR_TOKEN_VARIABLE,
    POLICY_PORT,
    REPLICA_VARIABLE,
    TOKENIZER_PATH,
    TRAINER_STATUS_PORT,
    TRAINER_TOKEN_VARIABLE,
)
from clotho_contract.ranks import (
    NODE_RANK_VARIABLE,
    NODES_VARIABLE,
    RANKS_PER_NODE_VARIABLE,
    RENDEZVOUS_HOST_VARIABLE,
    RENDEZVOUS_PORT,
    RENDEZVOUS_PORT_VARIABLE,
    inference_port,
)

API_SERVER_GRACE: Final = 30
TRAINER_GRACE: Final = 300  # for a last checkpoint
INFERENCE_GRACE: Final = 30
ENVIRONMENT_GRACE: Final = 30
EXPORTER_GRACE: Final = 30
MODELS_PATH: Final = "/models"
_ACCEPTED_BY_INFERENCE: Final = (ENVIRONMENT_TOKEN_VARIABLE, OPERATOR_TOKEN_VARIABLE)
_WITHOUT_GPUS: Final = resources("250m", "1Gi", {})
_NETWORK_INTERFACE: Final = "eth0"  # of the pod's own network: left alone, NCCL and gloo may choose another


def api_server_pod(run: TrainingRun, settings: RenderSettings, restarts: int) -> Manifest:
    secret = base_name(run.metadata)
    main = {
        "name": MAIN,
        "image": settings.images.api_server,
        "command": ["python", "-m", "clotho_api_server"],
        "env": [
            config_variable(),
            value(DATA_VARIABLE, str(DATA_PATH)),
            *(from_secret(key, secret) for key in API_SERVER_KEYS),
        ],
        "ports": [port("http", API_SERVER_PORT)],
        "resources": resources("100m", "512Mi", {"memory": "4Gi"}),
        "volumeMounts": [*_shared_mounts(), mount("data", str(DATA_PATH))],
        **probes(API_SERVER_PORT),
    }
    claim = "" if run.spec.storage.ephemeral else claim_name(run.metadata, API_SERVER)
    spec = {
        "hostname": API_SERVER,
        "subdomain": base_name(run.metadata),
        "terminationGracePeriodSeconds": API_SERVER_GRACE,
        "containers": [main],
        "volumes": [*_shared_volumes(run), _claim_or_scratch("data", claim, run.spec.storage.api_server_size)],
    }
    pod = _pod(run, identity(run, API_SERVER), spec, settings, restarts)
    return frame.finish(pod, run.spec.api_server.template, "spec.apiServer.template", settings)


def trainer_pod(run: TrainingRun, settings: RenderSettings, restarts: int, attempt: int, index: int = 0) -> Manifest:
    gpus, topology = run.spec.gpus_per_trainer, run.spec.topology
    inline = tuple(_inline_volumes(run))
    main = _trainer_container(run, settings, "train", _with_gpus(gpus, run.spec.trainer.gpu_resource))
    main["env"] += [*_trainer_secrets(run), *_trainer_tokens(run), *_rank_variables(run, settings, index)]
    main["env"] += _known_checkpoint(run, index)
    served = [port(_port_name(rank), inference_port(rank)) for rank in range(topology.ranks_per_node)]
    main["ports"] = [*served, *main["ports"]]
    if run.spec.can_have_replicas and index == 0:
        main["env"].append(from_secret(INFERENCE_TOKEN_VARIABLE, base_name(run.metadata)))
        main["ports"].append(port("policy", POLICY_PORT))
    main["volumeMounts"] += [
        mount("shm", "/dev/shm"),  # noqa: S108 - torch's workers talk through it
        *(mount(name, path, read_only=True) for name, path, _ in inline),
    ]
    spec = {
        "hostname": short_host_name(TRAINER, index),
        "subdomain": base_name(run.metadata),
        "terminationGracePeriodSeconds": TRAINER_GRACE,
        "containers": [main | probes(TRAINER_STATUS_PORT)],
        "volumes": [
            *_trainer_volumes(run, settings, has_claim=index == 0),
            _shared_memory(gpus),
            *({"name": name, **volume} for name, _, volume in inline),
        ],
    }
    pod = _pod(run, identity(run, TRAINER, index=index), spec, settings, restarts)
    pod["metadata"]["labels"][ATTEMPT_LABEL] = str(attempt)
    return frame.finish(pod, run.spec.trainer.template, "spec.trainer.template", settings)


def inference_pod(run: TrainingRun, index: int, settings: RenderSettings, restarts: int) -> Manifest:
    """The trainer's image, model and template, since it loads the same policy; it keeps nothing."""
    gpus, secret = run.spec.gpus_per_replica, base_name(run.metadata)
    main = _trainer_container(run, settings, "serve", _with_gpus(gpus, run.spec.trainer.gpu_resource))
    main["env"] += [
        own_token(secret, INFERENCE_TOKEN_VARIABLE),
        *(from_secret(key, secret) for key in _ACCEPTED_BY_INFERENCE),
        value(REPLICA_VARIABLE, str(index)),
    ]
    main["ports"] = [port("inference", INFERENCE_PORT), *main["ports"]]
    main["volumeMounts"].append(mount("shm", "/dev/shm"))  # noqa: S108 - the processes of vLLM talk through it
    spec = {
        "hostname": short_host_name(INFERENCE, index),
        "subdomain": base_name(run.metadata),
        "terminationGracePeriodSeconds": INFERENCE_GRACE,
        "containers": [main | probes(TRAINER_STATUS_PORT)],
        "volumes": [*_trainer_volumes(run, settings, has_claim=False), _shared_memory(gpus)],
    }
    pod = _pod(run, identity(run, INFERENCE, index=index), spec, settings, restarts)
    return frame.finish(pod, run.spec.trainer.template, "spec.trainer.template", settings)


def exporter_pod(run: TrainingRun, settings: RenderSettings, name: str, restarts: int) -> Manifest:
    """The trainer's image, volumes and template, since it needs the same model; but no GPU of the operator's asking."""
    main = _trainer_container(run, settings, "export", resources("500m", "2Gi", {}))
    spec = {
        "terminationGracePeriodSeconds": EXPORTER_GRACE,
        "containers": [main],
        "volumes": _trainer_volumes(run, settings),
    }
    pod = _pod(run, identity(run, EXPORTER) | {"name": name}, spec, settings, restarts)
    return frame.finish(pod, run.spec.trainer.template, "spec.trainer.template", settings)


def _with_gpus(gpus: int, resource: str) -> Manifest:
    return resources(f"{2 * gpus}", f"{16 * gpus}Gi", {resource: gpus}) if gpus else _WITHOUT_GPUS


def _shared_memory(gpus: int) -> Manifest:
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{8 * gpus or 1}Gi"}}


def _trainer_container(run: TrainingRun, settings: RenderSettings, command: str, asked: Manifest) -> Manifest:
    return {
        "name": MAIN,
        "image": settings.images.trainer,
        "command": ["python", "-m", "clotho_trainer", command],
        "env": [*_model_variables(run), *outside_variables(settings)],
        "ports": [port("status", TRAINER_STATUS_PORT)],
        "resources": asked,
        "volumeMounts": [
            *_shared_mounts(),
            *outside_mounts(settings),
            mount("data", str(DATA_PATH)),
            mount("models", MODELS_PATH, read_only=True),
        ],
    }


def _trainer_volumes(run: TrainingRun, settings: RenderSettings, *, has_claim: bool = True) -> list[Manifest]:
    """One pod has the claim, which most clusters can mount on one node only; the others keep nothing."""
    return [
        *_shared_volumes(run),
        *outside_volumes(settings),
        _claim_or_scratch("data", trainer_claim_name(run) if has_claim else "", run.spec.storage.size),
        # An init container of the template may fill it.
        _claim_or_scratch("models", run.spec.model.claim_name, run.spec.storage.size),
    ]


def environment_pod(
    run: TrainingRun, environment: EnvironmentSpec, index: int, settings: RenderSettings, restarts: int
) -> Manifest:
    image, needed = environment.image or settings.images.environment, needs.needs_of(environment)
    variables = [
        config_variable(),
        own_token(base_name(run.metadata), ENVIRONMENT_TOKEN_VARIABLE),
        value(ENVIRONMENT_VARIABLE, environment.name),
        *needs.offline_variables(needed),
    ]
    mounts = [*_shared_mounts(), mount("work", str(TOKENIZER_PATH.parent))]
    code = code_volumes(environment.config_map_name)
    code_container = {
        "image": image,
        "env": [*variables, *needs.variables(needed, image, settings)],
        **variables_of(environment.secret_name),
        "resources": resources("100m", "512Mi", {"memory": "4Gi"}),
        "volumeMounts": [
            *mounts,
            *needs.mounts(needed, settings),
            *(mount(volume["name"], ENVIRONMENT_CODE_PATH, read_only=True) for volume in code),
        ],
    }
    main = {
        "name": MAIN,
        "command": ["python", "-m", "clotho_environment", "serve"],
        **code_container,
        "ports": [port("status", ENVIRONMENT_STATUS_PORT)],
        **probes(ENVIRONMENT_STATUS_PORT),
    }
    wait: Manifest = {"name": "wait", "command": ["python", "-m", "clotho_environment", "wait"]}
    if _can_be_checked(environment):
        wait |= code_container
        wait["env"] = [*code_container["env"], value(CHECK_VARIABLE, "1")]
    else:
        few = resources("50m", "128Mi", {"memory": "512Mi"})
        wait |= {"image": image, "env": variables, "resources": few, "volumeMounts": mounts}
    spec = {
        "terminationGracePeriodSeconds": ENVIRONMENT_GRACE,
        "initContainers": [*needs.init_containers(needed, image, settings), wait],
        "containers": [main],
        "volumes": [*_shared_volumes(run), scratch("work", "1Gi"), *needs.volumes(needed, settings), *code],
    }
    pod = _pod(run, identity(run, ENVIRONMENT, environment.name, index), spec, settings, restarts)
    return frame.finish(pod, environment.template, f"spec.environments.{environment.name}.template", settings)


def _can_be_checked(environment: EnvironmentSpec) -> bool:
    """A template's containers may run other code; of an Atropos file, only running it shows whether it works."""
    return not environment.entry.startswith("atropos:") and not has_containers(environment.template)


def _model_variables(run: TrainingRun) -> list[Manifest]:
    """What every pod that loads the model needs."""
    secret = run.spec.model.secret_name
    return [
        config_variable(),
        value(DATA_VARIABLE, str(DATA_PATH)),
        value("HF_HOME", str(DATA_PATH / "huggingface")),  # a model is downloaded once, not at every restart
        *([from_secret("HF_TOKEN", secret)] if secret else []),
    ]


def _trainer_secrets(run: TrainingRun) -> list[Manifest]:
    wandb = run.spec.tracking.wandb
    secrets = {
        "TINKER_API_KEY": run.spec.trainer.tinker_secret_name,
        "WANDB_API_KEY": wandb.secret_name if wandb else "",
    }
    store = run.spec.storage.s3.secret_name if run.spec.storage.s3 else ""
    secrets |= {"AWS_ACCESS_KEY_ID": store, "AWS_SECRET_ACCESS_KEY": store}
    entity = [from_secret("WANDB_ENTITY", wandb.secret_name, is_optional=True)] if wandb and wandb.secret_name else []
    return [*(from_secret(variable, secret) for variable, secret in secrets.items() if secret), *entity]


def _trainer_tokens(run: TrainingRun) -> list[Manifest]:
    """Its own for the API server, where there is one, and those that its inference server accepts."""
    secret = base_name(run.metadata)
    own = [] if run.spec.is_inline else [own_token(secret, TRAINER_TOKEN_VARIABLE)]
    return [*own, *(from_secret(key, secret) for key in _ACCEPTED_BY_INFERENCE)]


def _rank_variables(run: TrainingRun, settings: RenderSettings, index: int) -> list[Manifest]:
    topology = run.spec.topology
    if topology.size == 1:
        return []
    return [
        value(NODES_VARIABLE, str(topology.nodes)),
        value(RANKS_PER_NODE_VARIABLE, str(topology.ranks_per_node)),
        value(NODE_RANK_VARIABLE, str(index)),
        value(RENDEZVOUS_HOST_VARIABLE, host_name(run.metadata, TRAINER, settings.cluster_domain)),
        value(RENDEZVOUS_PORT_VARIABLE, str(RENDEZVOUS_PORT)),
        *(value(f"{library}_SOCKET_IFNAME", _NETWORK_INTERFACE) for library in ("GLOO", "NCCL")),
    ]


def _known_checkpoint(run: TrainingRun, index: int) -> list[Manifest]:
    """Without it, a trainer whose checkpoints were deleted starts at step 1 as if it were the first."""
    saved = run.status.checkpoint
    if saved is None or index or run.spec.storage.ephemeral:
        return []
    return [value(CHECKPOINT_STEP_VARIABLE, str(saved.step))]


def _port_name(local_rank: int) -> str:
    return f"inference-{local_rank}" if local_rank else "inference"


def _inline_volumes(run: TrainingRun) -> Iterator[tuple[str, str, Manifest]]:
    """Name, place and source of what an inline run brings along."""
    if run.spec.inline is None:
        return
    for name, path, source in (
        ("dataset", DATASET_PATH, run.spec.inline.dataset),
        ("code", CODE_PATH, run.spec.inline.code),
    ):
        if source.config_map_name:
            yield name, str(path), {"configMap": {"name": source.config_map_name}}
        elif source.claim_name:
            yield name, str(path), {"persistentVolumeClaim": {"claimName": source.claim_name, "readOnly": True}}


def identity(run: TrainingRun, component: Component, environment: str = "", index: int = 0) -> Manifest:
    """A pod's name, owner, and the labels by which watches, policies and Services find it."""
    labels: dict[str, str] = {}
    if component in (API_SERVER, TRAINER, INFERENCE):
        labels[SERVING_LABEL] = "true"
    if component == ENVIRONMENT:
        labels[ENVIRONMENT_LABEL] = environment
    if component in (ENVIRONMENT, INFERENCE) or (component == TRAINER and run.spec.topology.nodes > 1):
        labels[INDEX_LABEL] = str(index)
    name = pod_name(run.metadata, component, environment, index)
    metadata = object_metadata(run.metadata, name, component=component)
    return metadata | {"labels": metadata["labels"] | labels}


def _pod(run: TrainingRun, identity: Manifest, spec: Manifest, settings: RenderSettings, restarts: int) -> Manifest:
    labels = identity["labels"] | {RESTARTS_LABEL: str(restarts)}
    annotations = {GENERATION_ANNOTATION: str(run.metadata.generation)}
    return frame.pod(identity | {"labels": labels, "annotations": annotations}, spec, settings)


def _shared_mounts() -> list[Manifest]:
    return [mount("config", str(CONFIG_PATH.parent), read_only=True)]


def _shared_volumes(run: TrainingRun) -> list[Manifest]:
    items = [{"key": CONFIG_KEY, "path": CONFIG_PATH.name}]  # the tokens stay out of the mounted folder
    return [
        {"name": "config", "secret": {"secretName": base_name(run.metadata), "items": items}},
        scratch("tmp", "10Gi"),
    ]


def _claim_or_scratch(name: str, claim: str, size: str) -> Manifest:
    if claim:
        return {"name": name, "persistentVolumeClaim": {"claimName": claim}}
    return scratch(name, size)
