"""The pod that imports an environment and reports its fields: untrusted code, so it has no secrets and no network."""

import hashlib
from typing import Any, Final

import msgspec

from clotho.api.environment import Described, Environment
from clotho.api.metadata import Metadata
from clotho.api.names import ENVIRONMENT_KIND
from clotho.api.training_run import EgressRule
from clotho.render import frame, needs
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
)
from clotho.render.disk import scratch
from clotho.render.metadata import object_metadata, selector
from clotho.render.names import base_name
from clotho.render.needs import Needs
from clotho.render.objects import egress_to_dns, tcp
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


def fingerprint(environment: Environment, source: Described) -> str:
    """Of all that the pod is made from; its template does not change what is described."""
    template = msgspec.json.encode(_template_of(environment), order="deterministic").decode()
    text = "\n".join((source.image, source.entry, source.files, source.needs, template))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def describing_pod(environment: Environment, source: Described, settings: RenderSettings) -> Manifest:
    metadata, config_map = environment.metadata, environment.spec.config_map_name
    code, needed = code_volumes(config_map), _needs_of(environment)
    install = needs.init_containers(needed, source.image, settings)
    command = ["python", "-m", "clotho_environment", "describe", "--serve"]
    main = {
        "name": MAIN,
        "image": source.image,
        "command": [*command, literal(f"--entry={source.entry}"), f"--deadline={IMPORT_SECONDS}"],
        "env": [*needs.offline_variables(needed), *needs.variables(needed, source.image, settings)],
        "ports": [port("status", ENVIRONMENT_STATUS_PORT)],
        "resources": resources("50m", "128Mi", {"cpu": "1", "memory": "2Gi"}),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # another image writes no termination message
        "volumeMounts": [
            *needs.mounts(needed, settings),
            *(mount(volume["name"], ENVIRONMENT_CODE_PATH, read_only=True) for volume in code),
        ],
        **probes(ENVIRONMENT_STATUS_PORT),
    }
    spec = {
        "activeDeadlineSeconds": LIFE_SECONDS,
        "terminationGracePeriodSeconds": 5,
        **({"initContainers": install} if install else {}),
        "containers": [main],
        "volumes": [scratch("tmp", "512Mi"), *needs.volumes(needed, settings), *code],
    }
    head = object_metadata(
        metadata,
        describing_name(metadata),
        kind=ENVIRONMENT_KIND,
        component=COMPONENT,
        fingerprint=fingerprint(environment, source),
    )
    return frame.finish(frame.pod(head, spec, settings), _template_of(environment), "spec.template", settings)


def placement_of(template: dict[str, Any]) -> dict[str, Any]:
    given = template.get("spec", {})
    kept = {key: given[key] for key in _PLACEMENT if key in given} if isinstance(given, dict) else {}
    return {"spec": kept} if kept else {}


def _template_of(environment: Environment) -> dict[str, Any]:
    """Placement, and the variables of the container that installs packages, such as the index."""
    template = placement_of(environment.spec.template)
    if not environment.spec.requirements:
        return template
    given = environment.spec.template.get("spec", {}).get("initContainers", ())
    variables = [
        {"name": each["name"], "env": each.get("env", [])} for each in given if each["name"] == needs.INSTALLER
    ]
    return template | {"spec": template.get("spec", {}) | ({"initContainers": variables} if variables else {})}


def _needs_of(environment: Environment) -> Needs:
    """Only where packages have to be installed before the import."""
    return needs.needs_of(environment.spec) if environment.spec.requirements else Needs()


def needs_hash(environment: Environment) -> str:
    if not environment.spec.requirements:
        return ""
    return hashlib.blake2b(msgspec.json.encode(_needs_of(environment)), digest_size=8).hexdigest()


def wall(metadata: Metadata, egress: tuple[EgressRule, ...], settings: RenderSettings) -> Manifest:
    """No way out at all, but for one to the requirements; the operator comes in to read the description."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(metadata, base_name(metadata), kind=ENVIRONMENT_KIND),
        "spec": {
            "podSelector": {"matchLabels": selector(metadata)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": tcp(ENVIRONMENT_STATUS_PORT)}],
            "egress": [*needs.egress_rules(egress, settings), egress_to_dns()] if egress else [],
        },
    }
