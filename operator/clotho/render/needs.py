"""What an environment needs besides its code: a way out, packages, a place for downloads. The same in runs, tests and
while it is described."""

import hashlib
from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Final

from msgspec import Struct

from clotho.api.networks import is_private, network_problem, private_parts
from clotho.api.training_run import EgressRule, EnvironmentNeeds
from clotho.render.containers import Manifest, mount, resources, value
from clotho.render.disk import scratch
from clotho.render.outside import outside_mounts, outside_variables, outside_volumes
from clotho.render.settings import RenderSettings
from clotho_contract.names import CACHE_PATH, PACKAGES_VARIABLE, REQUIREMENTS_VARIABLE

INSTALLER: Final = "packages"  # the init container
_CACHE: Final = "cache"
_PACKAGES: Final = "packages"  # a folder of the claim, and the volume where there is none
_HUB: Final = "huggingface"


class Needs(Struct, frozen=True, kw_only=True):
    egress: tuple[EgressRule, ...] = ()
    requirements: tuple[str, ...] = ()
    cache_claim_name: str = ""


def needs_of(environment: EnvironmentNeeds) -> Needs:
    return Needs(
        egress=environment.egress or (),
        requirements=environment.requirements,
        cache_claim_name=environment.cache_claim_name,
    )


def needs_problems(where: str, needs: Needs, settings: RenderSettings) -> Iterator[str]:
    if needs.requirements and not needs.egress:
        yield f"{where}requirements: they are installed from a package index, which needs egress to its network"
    for rule in needs.egress:
        if problem := network_problem(rule.cidr):
            yield f"{where}egress: {problem}"
        elif is_private(ip_network(rule.cidr), settings.private_networks):
            yield (
                f"{where}egress: {rule.cidr} is not a public network; have the administrator add it to "
                "runs.privateNetworks"
            )


def egress_rules(egress: Iterable[EgressRule], settings: RenderSettings) -> list[Manifest]:
    return [
        {
            "to": [{"ipBlock": _block(rule.cidr, settings)}],
            "ports": [{"port": port, "protocol": "TCP"} for port in rule.ports],
        }
        for rule in egress
    ]


def _block(cidr: str, settings: RenderSettings) -> Manifest:
    private = private_parts(ip_network(cidr), settings.private_networks)
    return {"cidr": cidr} | ({"except": private} if private else {})


def offline_variables(needs: Needs) -> list[Manifest]:
    """Where there is no way out, libraries fail at once instead of after many retries."""
    return [] if needs.egress else [value("HF_HUB_OFFLINE", "1")]


def variables(needs: Needs, image: str, settings: RenderSettings) -> list[Manifest]:
    found = outside_variables(settings) if needs.egress else []
    if needs.cache_claim_name:
        found.append(value("HF_HOME", str(CACHE_PATH / _HUB)))
    if needs.requirements:
        found.append(value(PACKAGES_VARIABLE, _folder(needs, image)))
    return found


def mounts(needs: Needs, settings: RenderSettings) -> list[Manifest]:
    """Environment code can write to the hub's cache, and to nothing else that pods share."""
    found = outside_mounts(settings) if needs.egress else []
    if needs.cache_claim_name:
        hub = mount(_CACHE, str(CACHE_PATH / _HUB)) | {"subPath": _HUB}
        found += [mount(_CACHE, str(CACHE_PATH), read_only=True), hub]
    elif needs.requirements:
        found.append(_packages_mount(needs) | {"readOnly": True})
    return found


def volumes(needs: Needs, settings: RenderSettings) -> list[Manifest]:
    found = outside_volumes(settings) if needs.egress else []
    if needs.cache_claim_name:
        found.append({"name": _CACHE, "persistentVolumeClaim": {"claimName": needs.cache_claim_name}})
    elif needs.requirements:
        found.append(scratch(_PACKAGES, "10Gi"))
    return found


def init_containers(needs: Needs, image: str, settings: RenderSettings) -> list[Manifest]:
    """Packages are installed by a container without the pod's secrets, before any code of theirs is imported."""
    if not needs.requirements:
        return []
    return [
        {
            "name": INSTALLER,
            "image": image,
            "command": ["python", "-m", "clotho_environment", "install"],
            "env": [
                *outside_variables(settings),
                value(PACKAGES_VARIABLE, _folder(needs, image)),
                value(REQUIREMENTS_VARIABLE, "\n".join(needs.requirements)),
            ],
            "resources": resources("100m", "128Mi", {"memory": "2Gi"}),
            "terminationMessagePolicy": "FallbackToLogsOnError",  # another image may not have the command
            "volumeMounts": [*outside_mounts(settings), _packages_mount(needs)],
        }
    ]


def _packages_mount(needs: Needs) -> Manifest:
    path = str(CACHE_PATH / _PACKAGES)
    return mount(_CACHE, path) | {"subPath": _PACKAGES} if needs.cache_claim_name else mount(_PACKAGES, path)


def _folder(needs: Needs, image: str) -> str:
    """One for each list and image: wheels fit the Python that they were chosen for."""
    digest = hashlib.blake2b("\n".join((image, *needs.requirements)).encode(), digest_size=8).hexdigest()
    return str(CACHE_PATH / _PACKAGES / digest)
