"""What the TrainingPolicies of a namespace amount to: what they forbid, and what they fill in. Pure.

The API server enforces the same with CEL (admission.py), policy by policy; a test compares the two.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from clotho.api.lockable import ENVIRONMENT_CONFIG, LEAVES, Path, value_at
from clotho.api.networks import is_within
from clotho.api.status import LimitsInForce, PolicyInForce
from clotho.api.templates import template_problems
from clotho.api.training_policy import AnyPolicy, TrainingPolicy, UnreadablePolicy
from clotho.api.training_run import TrainingRunSpec

Tree = dict[str, Any]
ALL_GPUS: Final = "trainer.gpus and inference.gpus of all replicas"


class Policy(PolicyInForce, frozen=True):
    """All policies of a namespace as one. `problems`: what is wrong with the policies themselves; no run can start."""

    problems: tuple[str, ...] = ()

    @property
    def in_force(self) -> PolicyInForce:
        """What a run remembers of it."""
        return PolicyInForce(
            names=self.names, locked=self.locked, limits=self.limits, template_fields=self.template_fields
        )


def combine(policies: Iterable[AnyPolicy]) -> Policy:
    """The strictest applies: the smallest number, and only what every list allows. No policy at all limits nothing."""
    ordered = sorted(policies, key=lambda policy: policy.metadata.name)
    readable = [policy for policy in ordered if isinstance(policy, TrainingPolicy)]
    limits = [policy.spec.limits for policy in readable]
    locked, problems = _locked_by_all(readable)
    problems += [
        f"TrainingPolicy {policy.metadata.name} cannot be read: {policy.problem}"
        for policy in ordered
        if isinstance(policy, UnreadablePolicy)
    ]
    return Policy(
        names=tuple(policy.metadata.name for policy in ordered),
        locked=locked,
        limits=LimitsInForce(
            gpus=_smallest(each.gpus for each in limits),
            replicas=_smallest(each.replicas for each in limits),
            steps=_smallest(each.steps for each in limits),
            active_runs=_smallest(each.active_runs for each in limits),
            images=tuple(each.images for each in limits if each.images is not None),
            models=tuple(each.models for each in limits if each.models is not None),
            egress=tuple(each.egress for each in limits if each.egress is not None),
        ),
        template_fields=_in_every(policy.spec.permissions.template_fields for policy in readable),
        problems=tuple(problems),
    )


def _in_every(lists: Iterable[tuple[str, ...] | None]) -> tuple[str, ...]:
    """What every list that is given permits."""
    given = [frozenset(each) for each in lists if each is not None]
    return tuple(sorted(frozenset.intersection(*given))) if given else ()


def _smallest(numbers: Iterable[int | None]) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _locked_by_all(policies: list[TrainingPolicy]) -> tuple[Tree, list[str]]:
    merged: Tree = {}
    source: dict[Path, str] = {}
    problems: list[str] = []
    for policy in policies:
        for path, value in _locked_values(policy.locked):
            before = value_at(merged, path)
            if before is UNSET:
                source[path] = policy.metadata.name
                _put(merged, path, value)
            elif not is_same(before, value):
                problems.append(
                    f"{'.'.join(path)} is locked to {shown(before)} by TrainingPolicy {source[path]} and to "
                    f"{shown(value)} by TrainingPolicy {policy.metadata.name}"
                )
    return merged, problems


def _locked_values(locked: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for leaf in LEAVES:
        if (value := value_at(locked, leaf.path)) is not UNSET:
            yield leaf.path, value
    for name, value in locked.get(ENVIRONMENT_CONFIG, {}).items():
        yield (ENVIRONMENT_CONFIG, name), value


def violations(spec: TrainingRunSpec, policy: PolicyInForce, before: TrainingRunSpec | None = None) -> tuple[str, ...]:
    """Everything that the policy does not allow, at once. On a change, what was so before is not held against it."""
    old = frozenset(_violations(before, policy)) if before is not None else frozenset()
    broken = policy.problems if isinstance(policy, Policy) else ()
    return (*broken, *(problem for problem in _violations(spec, policy) if problem not in old))


def _violations(spec: TrainingRunSpec, policy: PolicyInForce) -> Iterator[str]:
    asked: Tree = msgspec.to_builtins(spec)
    yield from _unlocked(asked, policy)
    yield from _excesses(spec, policy)
    yield from _unlisted(asked, policy)


def _unlocked(asked: Tree, policy: PolicyInForce) -> Iterator[str]:
    """A run may leave a locked field out. The API server fills defaults in first, so a default counts as left out."""
    for leaf in LEAVES:
        locked, given = value_at(policy.locked, leaf.path), value_at(asked, leaf.path)
        if locked is not UNSET and given is not UNSET and not (is_same(given, locked) or is_same(given, leaf.default)):
            yield _not_the_locked(leaf.name, given, locked, policy)
    for environment in asked["environments"]:
        config = environment["config"]
        for name, locked in policy.locked.get(ENVIRONMENT_CONFIG, {}).items():
            if name in config and not is_same(config[name], locked):
                yield _not_the_locked(f"environments.{environment['name']}.config.{name}", config[name], locked, policy)


def _not_the_locked(name: str, given: object, locked: object, policy: PolicyInForce) -> str:
    return f"{name}: {shown(given)} is not allowed, it is locked to {shown(locked)} by {policy.title}"


def _excesses(spec: TrainingRunSpec, policy: PolicyInForce) -> Iterator[str]:
    limits = policy.limits
    trainer, replicas = spec.trainer, sum(environment.most_replicas for environment in spec.environments)
    gpus = "trainer.gpus of all replicas" if trainer.replicas > 1 else "trainer.gpus"
    if spec.inference.replicas:
        gpus = ALL_GPUS
    for name, asked, limit in (
        ("training.steps", spec.training.steps, limits.steps),
        (gpus, spec.all_gpus, limits.gpus),
        ("environments: the sum of replicas, autoscaling.max where set", replicas, limits.replicas),
    ):
        if limit is not None and asked > limit:
            yield f"{name}: {asked} is more than {limit}, the limit of {policy.title}"


def _unlisted(asked: Tree, policy: PolicyInForce) -> Iterator[str]:
    """Models, images, networks and devices that are not on the lists."""
    model = asked["model"]["name"]
    if not _is_allowed(model, policy.limits.models):
        yield f"model.name: {model} is not among the models of {policy.title}"
    for environment in asked["environments"]:
        yield from _image_problems(f"environments.{environment['name']}.image", [environment["image"]], policy)
        cidrs = [rule["cidr"] for rule in environment["egress"] or ()]
        yield from _egress_problems(f"environments.{environment['name']}.egress", cidrs, policy)
    for where, template in _templates(asked):
        yield from _template_problems(where, template, policy)


def template_violations(spec: TrainingRunSpec, policy: PolicyInForce | None) -> tuple[str, ...]:
    """Fields that the run's pod templates may not set. They hold without any policy; a policy can permit more."""
    permitted = frozenset(policy.template_fields if policy is not None else ())
    templates = _templates(msgspec.to_builtins(spec))
    return tuple(problem for where, each in templates for problem in template_problems(where, each, permitted))


def pod_violations(image: str, template: Tree, policy: PolicyInForce, networks: Iterable[str] = ()) -> tuple[str, ...]:
    """For an Environment or an InferenceTest, which have pods as well. `networks`: those that its pods reach."""
    broken = policy.problems if isinstance(policy, Policy) else ()
    return (
        *broken,
        *_image_problems("image", [image], policy),
        *_egress_problems("egress", networks, policy),
        *_template_problems("template", template, policy),
        *template_problems("template", template, frozenset(policy.template_fields)),
    )


def _template_problems(where: str, template: Tree, policy: PolicyInForce) -> Iterator[str]:
    pod = _dict(template.get("spec"))
    yield from _image_problems(where, _images(pod), policy)
    if policy.limits.gpus is not None and _asks_for_devices(pod):
        yield f"{where}: devices are asked for with trainer.gpus, which {policy.title} limits"


def _image_problems(where: str, images: Iterable[str], policy: PolicyInForce) -> Iterator[str]:
    """No image at all means the operator's own."""
    for image in images:
        if image and not _is_allowed(image, policy.limits.images):
            yield f"{where}: {image} is not among the images of {policy.title}"


def _egress_problems(where: str, networks: Iterable[str], policy: PolicyInForce) -> Iterator[str]:
    for network in networks:
        if not all(is_within(network, allowed) for allowed in policy.limits.egress):
            yield f"{where}: {network} is not within the networks of {policy.title}"


def _templates(asked: Tree) -> Iterator[tuple[str, Tree]]:
    yield "trainer.template", asked["trainer"]["template"]
    yield "apiServer.template", asked["apiServer"]["template"]
    for environment in asked["environments"]:
        yield f"environments.{environment['name']}.template", environment["template"]


def _containers(pod: Tree) -> list[Tree]:
    return [_dict(each) for kind in ("containers", "initContainers") for each in _list(pod.get(kind))]


def _images(pod: Tree) -> list[str]:
    """Those of containers, and those mounted as volumes."""
    named = [container.get("image") for container in _containers(pod)]
    mounted = [_dict(_dict(volume).get("image")).get("reference") for volume in _list(pod.get("volumes"))]
    return [image for image in (*named, *mounted) if isinstance(image, str) and image]


def _asks_for_devices(pod: Tree) -> bool:
    """Names of devices have a domain, as in nvidia.com/gpu; cpu and memory have none."""
    if pod.get("resourceClaims"):
        return True
    resources = [_dict(part.get("resources")) for part in (pod, *_containers(pod))]
    return any("/" in name for each in resources for kind in ("limits", "requests") for name in _dict(each.get(kind)))


def _is_allowed(name: str, lists: tuple[tuple[str, ...], ...]) -> bool:
    return all(any(re.fullmatch(_pattern(glob), name) for glob in globs) for globs in lists)


def _pattern(glob: str) -> str:
    return ".*".join(map(re.escape, glob.split("*")))


def _dict(value: object) -> Tree:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def fill_in(spec: TrainingRunSpec, policy: PolicyInForce) -> TrainingRunSpec:
    """The run as it is carried out: every locked field has its locked value, also below objects it left out."""
    if not policy.locked:
        return spec
    filled: Tree = msgspec.to_builtins(spec)
    for leaf in LEAVES:
        value = value_at(policy.locked, leaf.path)
        if value is UNSET or (leaf.required and not _can_be_made(filled, policy.locked, leaf.optional, leaf.required)):
            continue
        _put(filled, leaf.path, value)
    for environment in filled["environments"]:
        environment["config"] |= policy.locked.get(ENVIRONMENT_CONFIG, {})
    return msgspec.convert(filled, TrainingRunSpec)


def _can_be_made(asked: Tree, locked: Tree, path: Path, required: frozenset[str]) -> bool:
    """An optional object that the run left out comes into being only with all that it needs."""
    return value_at(asked, path) is not UNSET or required <= set(value_at(locked, path))


def _put(tree: Tree, path: Path, value: object) -> None:
    for name in path[:-1]:
        if tree.get(name) is None:
            tree[name] = {}
        tree = tree[name]
    tree[path[-1]] = value


def is_same(one: object, other: object) -> bool:
    """Equal as JSON: 1 is 1.0, but not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


_LONGEST: Final = 200


def shown(value: object) -> str:
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    text = value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
