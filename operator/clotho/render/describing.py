"""The pod that imports an environment and reports its fields: untrusted code, so it has no secrets and no network."""

import hashlib
from typing import Any, Final

from clotho.api.environment import Described, Environment
from clotho.api.metadata import Metadata
from clotho.api.names import ENVIRONMENT_KIND
from clotho.render import frame
from clotho.render.containers import (
    ENVIRONMENT_CODE_PATH,
    MAIN,
    Manifest,
    code_volumes,
    literal,
    mount,
    port,
    probes,
    resources,
    value,
)
from clotho.render.disk import scratch
from clotho.render.metadata import object_metadata, selector
from clotho.render.names import base_name
from clotho.render.objects import tcp
from clotho.render.settings import RenderSettings
from clotho_contract.names import ENVIRONMENT_STATUS_PORT

COMPONENT: Final = "environment-description"
IMPORT_SECONDS: Final = 120
LIFE_SECONDS: Final = 900  # pulling the image included
_PLACEMENT: Final = (  # the part of a template that applies to this pod
    "affinity",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "tolerations",
)


def describing_name(environment: Metadata) -> str:
    return f"{base_name(environment)}-describe"


def fingerprint(source: Described) -> str:
    text = "\n".join((source.image, source.entry, source.files))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def describing_pod(environment: Environment, source: Described, settings: RenderSettings) -> Manifest:
    metadata, config_map = environment.metadata, environment.spec.config_map_name
    code = code_volumes(config_map)
    command = ["python", "-m", "clotho_environment", "describe", "--serve"]
    main = {
        "name": MAIN,
        "image": source.image,
        "command": [*command, literal(f"--entry={source.entry}"), f"--deadline={IMPORT_SECONDS}"],
        "env": [value("HF_HUB_OFFLINE", "1")],
        "ports": [port("status", ENVIRONMENT_STATUS_PORT)],
        "resources": resources("50m", "128Mi", {"cpu": "1", "memory": "2Gi"}),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # another image writes no termination message
        "volumeMounts": [mount(volume["name"], ENVIRONMENT_CODE_PATH, read_only=True) for volume in code],
        **probes(ENVIRONMENT_STATUS_PORT),
    }
    spec = {
        "activeDeadlineSeconds": LIFE_SECONDS,
        "terminationGracePeriodSeconds": 5,
        "containers": [main],
        "volumes": [scratch("tmp", "512Mi"), *code],
    }
    head = object_metadata(
        metadata,
        describing_name(metadata),
        kind=ENVIRONMENT_KIND,
        component=COMPONENT,
        fingerprint=fingerprint(source),
    )
    placement = placement_of(environment.spec.template)
    return frame.finish(frame.pod(head, spec, settings), placement, "spec.template", settings)


def placement_of(template: dict[str, Any]) -> dict[str, Any]:
    given = template.get("spec", {})
    kept = {key: given[key] for key in _PLACEMENT if key in given} if isinstance(given, dict) else {}
    return {"spec": kept} if kept else {}


def wall(environment: Metadata) -> Manifest:
    """No way out at all; the operator comes in to read the description."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(environment, base_name(environment), kind=ENVIRONMENT_KIND),
        "spec": {
            "podSelector": {"matchLabels": selector(environment)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": tcp(ENVIRONMENT_STATUS_PORT)}],
            "egress": [],
        },
    }
