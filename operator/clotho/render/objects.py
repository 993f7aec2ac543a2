"""Everything of a run that is not a pod: names, secrets, walls, disks."""

import base64
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from clotho.api.names import (
    API_SERVER,
    COMPONENT_LABEL,
    ENVIRONMENT,
    ENVIRONMENT_LABEL,
    INFERENCE,
    SERVING_LABEL,
    TOKEN_KEYS_ANNOTATION,
    TRAINER,
    Component,
)
from clotho.api.training_run import EnvironmentSpec, TrainingRun
from clotho.render.metadata import Manifest, object_metadata, selector
from clotho.render.names import base_name, claim_name
from clotho.render.needs import egress_rules
from clotho.render.settings import RenderSettings
from clotho_contract import config as contract
from clotho_contract.names import (
    ADMIN_TOKEN_VARIABLE,
    API_SERVER_PORT,
    ENVIRONMENT_STATUS_PORT,
    ENVIRONMENT_TOKEN_VARIABLE,
    INFERENCE_PORT,
    INFERENCE_TOKEN_VARIABLE,
    OPERATOR_TOKEN_VARIABLE,
    POLICY_PORT,
    TRAINER_STATUS_PORT,
    TRAINER_TOKEN_VARIABLE,
)
from clotho_contract.ranks import inference_port

CONFIG_KEY: Final = "run.yaml"
ROLE_KEYS: Final = (ENVIRONMENT_TOKEN_VARIABLE, TRAINER_TOKEN_VARIABLE, OPERATOR_TOKEN_VARIABLE)
API_SERVER_KEYS: Final = (*ROLE_KEYS, ADMIN_TOKEN_VARIABLE)  # that the API server accepts
TOKEN_KEYS: Final = (*API_SERVER_KEYS, INFERENCE_TOKEN_VARIABLE)
_DNS_PORT: Final = 53


def service(run: TrainingRun) -> Manifest:
    """Headless: gives API server, trainer and inference replicas their host names, also before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": object_metadata(run.metadata, base_name(run.metadata)),
        "spec": {
            "type": "ClusterIP",
            "externalName": "",  # the two make an edit to another type repairable,
            "externalIPs": [],  # and these two what would lead others' traffic to the run
            "sessionAffinity": "None",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(run.metadata, **{SERVING_LABEL: "true"}),
            "ports": [_service_port("api-server", API_SERVER_PORT), _service_port("inference", INFERENCE_PORT)],
        },
    }


def _service_port(name: str, port: int) -> Manifest:
    return {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}


def secret(run: TrainingRun, config: contract.RunConfig) -> Manifest:
    """The config file; the tokens of each role stand beside it, filled in once by the writer."""
    metadata = object_metadata(run.metadata, base_name(run.metadata))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": metadata | {"annotations": {TOKEN_KEYS_ANNOTATION: ",".join(TOKEN_KEYS)}},
        "data": {CONFIG_KEY: _config_file(msgspec.json.encode(config))},
    }


@lru_cache(maxsize=8192)
def _config_file(encoded: bytes) -> str:
    """YAML takes milliseconds to write, and every reconcile compares it with what is in the Secret."""
    config = msgspec.json.decode(encoded, type=contract.RunConfig)
    return base64.b64encode(contract.render(config).encode()).decode()


def contents_digest(contents: str) -> str:
    """Of one entry as it stands in the Secret: a hand edit shows by it."""
    return hashlib.blake2b(contents.encode(), digest_size=16).hexdigest()


def token_digests(data: Mapping[str, str]) -> str:
    return ",".join(f"{key}={contents_digest(data[key])}" for key in TOKEN_KEYS if data.get(key))


def are_as_recorded(data: Mapping[str, str], digests: str) -> bool:
    """Whether each token of the record is there unchanged; a Secret of an earlier release has no record."""
    recorded = dict(entry.split("=", 1) for entry in digests.split(",") if "=" in entry)
    return all(contents_digest(data.get(key, "")) == recorded[key] for key in TOKEN_KEYS if key in recorded)


def network_policy(run: TrainingRun) -> Manifest:
    """Environments are untrusted code: they reach this run's API server and inference, and DNS; nothing else."""
    environments = selector(run.metadata, **{COMPONENT_LABEL: ENVIRONMENT})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(run.metadata, base_name(run.metadata)),
        "spec": {
            "podSelector": {"matchLabels": environments},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": tcp(ENVIRONMENT_STATUS_PORT)}],
            "egress": [
                _egress_to(run, API_SERVER, API_SERVER_PORT),
                _egress_to(run, TRAINER, *_inference_ports(run)),
                *([_egress_to(run, INFERENCE, INFERENCE_PORT)] if run.spec.inference.replicas else []),
                egress_to_dns(),
            ],
        },
    }


def egress_name(run: TrainingRun, environment: str) -> str:
    return f"{base_name(run.metadata)}-env-{environment}"


def egress_policy(run: TrainingRun, environment: EnvironmentSpec, settings: RenderSettings) -> Manifest:
    """Adds to network_policy what one environment was given, for its own pods only."""
    pods = selector(run.metadata, **{COMPONENT_LABEL: ENVIRONMENT, ENVIRONMENT_LABEL: environment.name})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(run.metadata, egress_name(run, environment.name), component=ENVIRONMENT),
        "spec": {
            "podSelector": {"matchLabels": pods},
            "policyTypes": ["Egress"],
            "egress": egress_rules(environment.egress or (), settings),
        },
    }


def trainer_policy(run: TrainingRun) -> Manifest:
    """Ranks talk without authentication and on random ports: only the run's own trainers reach those; and only its
    inference replicas reach the policy."""
    trainers = {"matchLabels": selector(run.metadata, **{COMPONENT_LABEL: TRAINER})}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(run.metadata, f"{base_name(run.metadata)}-{TRAINER}", component=TRAINER),
        "spec": {
            "podSelector": trainers,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": tcp(TRAINER_STATUS_PORT, *_inference_ports(run))},
                {"from": [{"podSelector": trainers}], "ports": [{"protocol": "TCP"}]},
                *([_ingress_from(run, INFERENCE, POLICY_PORT)] if run.spec.inference.replicas else []),
            ],
        },
    }


def inference_policy(run: TrainingRun) -> Manifest:
    """Inference replicas serve the run's environments alone."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(run.metadata, f"{base_name(run.metadata)}-{INFERENCE}", component=INFERENCE),
        "spec": {
            "podSelector": {"matchLabels": selector(run.metadata, **{COMPONENT_LABEL: INFERENCE})},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": tcp(TRAINER_STATUS_PORT)}, _ingress_from(run, ENVIRONMENT, INFERENCE_PORT)],
        },
    }


def _inference_ports(run: TrainingRun) -> tuple[int, ...]:
    """Of each trainer pod."""
    return tuple(map(inference_port, range(run.spec.topology.ranks_per_node)))


def egress_to_dns() -> Manifest:
    """Only the cluster's own: a port that is open to the world carries more than names."""
    cluster_dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    node_local_dns = {"ipBlock": {"cidr": "169.254.20.10/32"}}
    return {
        "to": [cluster_dns, node_local_dns],
        "ports": [{"port": _DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")],
    }


def _egress_to(run: TrainingRun, component: Component, *ports: int) -> Manifest:
    return {"to": [_peer(run, component)], "ports": tcp(*ports)}


def _ingress_from(run: TrainingRun, component: Component, *ports: int) -> Manifest:
    return {"from": [_peer(run, component)], "ports": tcp(*ports)}


def _peer(run: TrainingRun, component: Component) -> Manifest:
    return {"podSelector": {"matchLabels": selector(run.metadata, **{COMPONENT_LABEL: component})}}


def tcp(*ports: int) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def claim(run: TrainingRun, component: Component) -> Manifest:
    """A retained claim has no owner: it outlives the run, whether the operator is there or not."""
    storage = run.spec.storage
    is_retained = component == TRAINER and storage.retain
    size = storage.size if component == TRAINER else storage.api_server_size
    spec: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if storage.storage_class_name:
        spec["storageClassName"] = storage.storage_class_name
    metadata = object_metadata(
        run.metadata,
        claim_name(run.metadata, component),
        component=component,
        fingerprint=f"{size}-{storage.storage_class_name}-{'retained' if is_retained else 'owned'}",
        owned=not is_retained,
    )
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def disruption_budget(run: TrainingRun) -> Manifest:
    """Draining a node waits until the trainer has ended or somebody decides otherwise: one pod less ends them all."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": object_metadata(run.metadata, base_name(run.metadata), component=TRAINER),
        "spec": {
            # maxUnavailable is only defined for owners with a scale subresource
            "minAvailable": run.spec.trainer.replicas if run.spec.trainer.disruption_budget else 0,
            "selector": {"matchLabels": selector(run.metadata, **{COMPONENT_LABEL: TRAINER})},
        },
    }


def trainer_claim_name(run: TrainingRun) -> str:
    """Empty when the run keeps nothing."""
    if run.spec.storage.ephemeral:
        return ""
    return run.spec.storage.claim_name or claim_name(run.metadata, TRAINER)
