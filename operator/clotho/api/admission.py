"""TrainingPolicies at admission: a ValidatingAdmissionPolicy, generated from the lockable fields.

It reports what policy.py reports, per TrainingPolicy of the run's namespace. The API server shows only the first of
several validations that fail, so there is one, with all problems in its message.
"""

import json
from typing import Any, Final

import yaml
from msgspec import UNSET

from clotho.api.lockable import ENVIRONMENT_CONFIG, LEAVES, Leaf
from clotho.api.names import API_VERSION, GROUP, PLURAL, POLICY_KIND, VERSION
from clotho.api.policy import ALL_GPUS

Manifest = dict[str, Any]
NAME: Final = "clotho"
_BY: Final = "TrainingPolicy %s"

# A change is judged by what it adds: a problem with the same words in the old object is not reported.
_SPECS: Final = "oldObject == null ? [object.spec] : [object.spec, oldObject.spec]"
_PROBLEMS: Final = "variables.found[0].filter(p, variables.found.size() == 1 || !(p in variables.found[1]))"

_ENVIRONMENTS: Final = "spec.?environments.orValue([])"
_TRAINERS: Final = "spec.?trainer.?replicas.orValue(1)"
_REPLICAS: Final = "spec.?inference.?replicas.orValue(0)"
_GPUS_PER_REPLICA: Final = (
    "spec.?inference.?gpus.orValue(spec.?trainer.?gpus.orValue(1) == 0 ? 0 "
    ": spec.?inference.?engine.orValue('') == 'vllm' ? spec.?inference.?vllm.?tensorParallel.orValue(1) : 1)"
)
_MOST_REPLICAS: Final = "e.?replicas.orValue(1) == 0 ? 0 : e.?autoscaling.?max.orValue(e.?replicas.orValue(1))"
_CONTAINERS: Final = "(t.pod.?containers.orValue([]) + t.pod.?initContainers.orValue([]))"
_TEMPLATES: Final = f"""(
  [
    {{'where': dyn('trainer.template'), 'pod': spec.?trainer.?template.?spec.orValue({{}})}},
    {{'where': dyn('apiServer.template'), 'pod': spec.?apiServer.?template.?spec.orValue({{}})}}
  ]
  + {_ENVIRONMENTS}.map(e, {{
    'where': dyn('environments.' + e.name + '.template'), 'pod': e.?template.?spec.orValue({{}})
  }})
)"""


def _text(message: str, *values: str) -> str:
    return f"'{message}'.format([{', '.join((*values, 'params.metadata.name'))}])"


def _locked_leaf(leaf: Leaf) -> str:
    """Three values when a run differs from the policy, nothing otherwise."""
    path = "".join(f".?{name}" for name in leaf.path)
    allowed = "v" if leaf.default is UNSET else f"v, dyn({_literal(leaf.default)})"
    return (
        f"?params.spec.?locked{path}.optFlatMap(v, spec{path}.optFlatMap(a, "
        f"a in [{allowed}] ? optional.none() : optional.of([dyn('{leaf.name}'), a, v])))"
    )


def _literal(value: object) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _locked_fields() -> str:
    leaves = ",\n  ".join(_locked_leaf(leaf) for leaf in LEAVES)
    message = _text(f"%s: %s is not allowed, it is locked to %s by {_BY}", "p[0]", "p[1]", "p[2]")
    return f"[\n  {leaves}\n].map(p, {message})"


def _locked_config() -> str:
    """One text an environment: CEL has no way to make one list of several."""
    locked = f"params.spec.?locked.?{ENVIRONMENT_CONFIG}.orValue({{}})"
    message = _text(
        f"environments.%s.config.%s: %s is not allowed, it is locked to %s by {_BY}",
        *("e.name", "k", "e.config[k]", f"{locked}[k]"),
    )
    return (
        f"{_ENVIRONMENTS}.map(e, {locked}.map(k, k in e.?config.orValue({{}}) && e.config[k] != {locked}[k],\n"
        f"  {message}\n).join('; '))"
    )


def _limit(name: str, asked: str, limit: str) -> str:
    """`name` is an expression as well."""
    message = _text(f"%s: %d is more than %d, the limit of {_BY}", name, asked, "v")
    return f"?params.spec.?limits.?{limit}.optFlatMap(v, {asked} > v ?\n    optional.of({message}) : optional.none())"


def _limits() -> str:
    numbers = (
        _limit("'training.steps'", "spec.training.steps", "steps"),
        _limit(
            f"({_REPLICAS} > 0 ? '{ALL_GPUS}' : {_TRAINERS} > 1 ? 'trainer.gpus of all replicas' : 'trainer.gpus')",
            f"({_TRAINERS} * spec.?trainer.?gpus.orValue(1) + {_REPLICAS} * {_GPUS_PER_REPLICA})",
            "gpus",
        ),
        _limit(
            "'environments: the sum of replicas, autoscaling.max where set'",
            f"{_ENVIRONMENTS}.map(e, {_MOST_REPLICAS}).sum()",
            "replicas",
        ),
        _models(),
    )
    return "[\n  " + ",\n  ".join(numbers) + "\n]"


def _is_allowed(name: str, globs: str) -> str:
    return f"{globs}.exists(g, {name}.matches('^' + g.replace('.', '[.]').replace('*', '.*') + '$'))"


def _models() -> str:
    message = _text(f"model.name: %s is not among the models of {_BY}", "spec.model.name")
    return (
        f"?params.spec.?limits.?models.optFlatMap(v, {_is_allowed('spec.model.name', 'v')} ?\n"
        f"    optional.none() : optional.of({message}))"
    )


def _images() -> str:
    message = _text(f"environments.%s.image: %s is not among the images of {_BY}", "e.name", "e.image")
    unknown = f"e.?image.orValue('') != '' && !{_is_allowed('e.image', 'params.spec.limits.images')}"
    return f"(!params.spec.?limits.?images.hasValue() ? [] : {_ENVIRONMENTS}.map(e, {unknown},\n  {message}))"


def _egress() -> str:
    allowed = "params.spec.limits.egress"
    message = _text(f"environments.%s.egress: %s is not within the networks of {_BY}", "e.name", "r.cidr")
    unknown = f"!{allowed}.exists(n, cidr(n).containsCIDR(r.cidr))"
    return (
        f"(!params.spec.?limits.?egress.hasValue() ? [] : {_ENVIRONMENTS}.map(e,\n"
        f"  e.?egress.orValue([]).map(r, {unknown},\n  {message}).join('; ')))"
    )


def _template_images() -> str:
    named = f"{_CONTAINERS}.map(c, c.?image.orValue(''))"
    mounted = "t.pod.?volumes.orValue([]).map(v, v.?image.?reference.orValue(''))"
    message = _text(f"%s: %s is not among the images of {_BY}", "t.where", "i")
    unknown = f"i != '' && !{_is_allowed('i', 'params.spec.limits.images')}"
    return (
        f"(!params.spec.?limits.?images.hasValue() ? [] : {_TEMPLATES}.map(t,\n"
        f"  ({named} + {mounted}).map(i, {unknown},\n  {message}).join('; ')))"
    )


def _template_devices() -> str:
    """Names of devices have a domain, as in nvidia.com/gpu; cpu and memory have none."""
    resources = f"([t.pod.?resources.orValue({{}})] + {_CONTAINERS}.map(c, c.?resources.orValue({{}})))"
    named = " || ".join(f"r.?{kind}.orValue({{}}).exists(k, k.contains('/'))" for kind in ("limits", "requests"))
    message = _text(f"%s: devices are asked for with trainer.gpus, which {_BY} limits", "t.where")
    return (
        f"(!params.spec.?limits.?gpus.hasValue() ? [] : {_TEMPLATES}.map(t,\n"
        f"  t.pod.?resourceClaims.orValue([]).size() > 0 || {resources}.exists(r, {named}),\n  {message}))"
    )


def _found() -> str:
    parts = (
        *(_locked_fields(), _locked_config(), _limits()),
        *(_images(), _egress(), _template_images(), _template_devices()),
    )
    return "variables.specs.map(spec, (\n" + "\n+ ".join(parts) + "\n).filter(p, p != ''))"


def admission_policy() -> Manifest:
    """Ignore on failure: nothing starts without the operator, which checks the same again."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Ignore",
            "paramKind": {"apiVersion": API_VERSION, "kind": POLICY_KIND},
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [GROUP],
                        "apiVersions": [VERSION],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": [PLURAL],
                    }
                ]
            },
            "matchConditions": [
                {"name": "spec-changes", "expression": "oldObject == null || object.spec != oldObject.spec"}
            ],
            "variables": [
                {"name": "specs", "expression": _SPECS},
                {"name": "found", "expression": _found()},
                {"name": "problems", "expression": _PROBLEMS},
            ],
            "validations": [
                {
                    "expression": "variables.problems.size() == 0",
                    "messageExpression": "variables.problems.join('; ')",
                    "message": "the TrainingPolicies of the namespace do not allow it",
                    "reason": "Forbidden",
                }
            ],
        },
    }


def binding() -> Manifest:
    """Every TrainingPolicy of the run's own namespace counts; where there is none, everything is allowed."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {
            "policyName": NAME,
            "validationActions": ["Deny"],
            "paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"},
        },
    }


class _Dumper(yaml.SafeDumper):
    """Expressions as blocks, so that a person can read them."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def render(manifest: Manifest) -> str:
    header = "# Generated from operator/clotho/api/admission.py by `make chart`; change it there.\n"
    body: str = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=1000)
    return header + body
