"""The pods of an inference test, one a model, and the wall around them."""

import ipaddress
import re
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from clotho.api.inference_tests import InferenceTest, TestedModel
from clotho.api.metadata import Metadata
from clotho.api.names import INDEX_LABEL, INFERENCE_TEST_KIND
from clotho.api.networks import is_private_address, private_parts
from clotho.api.training_run import EgressRule
from clotho.render import frame, needs
from clotho.render.containers import (
    ENVIRONMENT_CODE_PATH,
    MAIN,
    Manifest,
    code_volumes,
    literal,
    mount,
    resources,
    variables_of,
)
from clotho.render.disk import scratch
from clotho.render.metadata import object_metadata, selector
from clotho.render.names import base_name
from clotho.render.needs import Needs
from clotho.render.objects import egress_to_dns, tcp
from clotho.render.settings import RenderSettings

COMPONENT: Final = "inference-test"
KEY_VARIABLE: Final = "OPENAI_API_KEY"
LENIENCE_SECONDS: Final = 600  # for pulling the image; the environment itself keeps the time limit
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")


class Subject(Struct, frozen=True, kw_only=True):
    """The environment that is tried, whether it was named or given."""

    entry: str
    image: str = ""
    config_map_name: str = ""
    secret_name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    needs: Needs = Needs()


def trial_pod_name(test: Metadata, index: int) -> str:
    return f"{base_name(test)}-model-{index}"


def trial_pod(test: InferenceTest, subject: Subject, index: int, settings: RenderSettings) -> Manifest:
    spec, model = test.spec, test.spec.tested_models[index]
    image = subject.image or settings.images.environment
    code = code_volumes(subject.config_map_name)
    main = {
        "name": MAIN,
        "image": image,
        "command": [
            *("python", "-m", "clotho_environment", "process", "--results"),
            literal(f"--entry={subject.entry}"),
            literal(f"--base-url={model.base_url}"),
            literal(f"--model={model.name}"),
            f"--groups={spec.steps}",
            f"--deadline={spec.timeout_seconds}",
            *(literal(f"--set={name}={_json(value)}") for name, value in subject.config.items()),
        ],
        "env": [*_key(model, spec.secret_name), *needs.variables(subject.needs, image, settings)],
        **variables_of(subject.secret_name),
        "resources": resources("100m", "256Mi", {"memory": "4Gi"}),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # another image writes no termination message
        "volumeMounts": [
            *needs.mounts(subject.needs, settings),
            *(mount(volume["name"], ENVIRONMENT_CODE_PATH, read_only=True) for volume in code),
        ],
    }
    install = needs.init_containers(subject.needs, image, settings)
    pod_spec = {
        "activeDeadlineSeconds": spec.timeout_seconds + LENIENCE_SECONDS,
        "terminationGracePeriodSeconds": 5,
        **({"initContainers": install} if install else {}),
        "containers": [main],
        "volumes": [scratch("tmp", "4Gi"), *needs.volumes(subject.needs, settings), *code],
    }
    name = trial_pod_name(test.metadata, index)
    head = object_metadata(test.metadata, name, kind=INFERENCE_TEST_KIND, component=COMPONENT)
    head["labels"] |= {INDEX_LABEL: str(index)}
    return frame.finish(frame.pod(head, pod_spec, settings), subject.template, "the Environment's template", settings)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _key(model: TestedModel, default_secret: str) -> list[Manifest]:
    """Only by reference: the key is in no manifest, file or command."""
    secret = model.secret_name or default_secret
    if not secret:
        return []
    return [{"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": {"name": secret, "key": model.secret_key}}}]


def address_problems(test: InferenceTest, settings: RenderSettings) -> tuple[str, ...]:
    """Private addresses are nodes, Services, the Kubernetes API and metadata services; Services of other namespaces
    are other people's. The administrator opens both."""
    own = test.metadata.namespace
    found = (
        (index, _address_problem(_server(model)[0], own, settings)) for index, model in enumerate(test.spec.models)
    )
    return tuple(f"models[{index}].baseUrl: {problem}" for index, problem in found if problem)


def _address_problem(host: str, own_namespace: str, settings: RenderSettings) -> str:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
            return f"{host} is neither a name nor an address of four numbers"
        labels = _labels(host, settings)
        if len(labels) > 1 and labels[-1] == "svc" and not _is_open(labels[-2], own_namespace, settings):
            return f"{host} is in another namespace; have the administrator add {labels[-2]} to runs.testNamespaces"
        return ""
    if is_private_address(str(address), settings.private_networks):
        return (
            f"{host} is not a public address; name a Service, or have the administrator add it to runs.privateNetworks"
        )
    return ""


def trial_wall(test: InferenceTest, settings: RenderSettings, egress: tuple[EgressRule, ...] = ()) -> Manifest:
    """Out to the models' servers on their ports, to what the Environment names, and to the cluster's DNS."""
    servers = dict.fromkeys(_server(model) for model in test.spec.tested_models)
    namespace = test.metadata.namespace
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(test.metadata, base_name(test.metadata), kind=INFERENCE_TEST_KIND),
        "spec": {
            "podSelector": {"matchLabels": selector(test.metadata)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": [
                *({"to": _peers(host, namespace, settings), "ports": tcp(port)} for host, port in servers),
                *needs.egress_rules(egress, settings),
                egress_to_dns(),
            ],
        },
    }


def _server(model: TestedModel) -> tuple[str, int]:
    url = urlsplit(model.base_url)
    return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def _peers(host: str, namespace: str, settings: RenderSettings) -> list[Manifest]:
    """An address is itself; a name without dots, or below .svc, is a Service's, in its namespace; others are public."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}]
    labels = _labels(host, settings)
    if len(labels) == 1:
        return [_pods_of(namespace)]
    if labels[-1] == "svc":
        return [_pods_of(labels[-2])]
    reachable = [{"ipBlock": {"cidr": cidr}} for cidr in settings.private_networks]
    if len(labels) == 2 and _is_open(labels[1], namespace, settings):  # `server.namespace`, or a short public name
        reachable.append(_pods_of(labels[1]))
    return [*_PUBLIC, *reachable]


def _labels(host: str, settings: RenderSettings) -> list[str]:
    return host.removesuffix(".").removesuffix(f".{settings.cluster_domain}").split(".")


def _is_open(namespace: str, own_namespace: str, settings: RenderSettings) -> bool:
    return namespace == own_namespace or namespace in settings.test_namespaces


_PUBLIC: Final[list[Manifest]] = [
    {"ipBlock": {"cidr": cidr, "except": private_parts(ipaddress.ip_network(cidr), ())}}
    for cidr in ("0.0.0.0/0", "::/0")
]


def _pods_of(namespace: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
