"""How deep a spec may be nested: free-form objects (`config`, `template`) have no schema that bounds them.

CEL rules of a CRD cannot see fields without a schema, so the bound is a ValidatingAdmissionPolicy of its own, without
parameters: it holds in every namespace. The operator checks again, for objects that were stored without it.
"""

from typing import Any, Final

from clotho.api.names import GROUP, PLURALS, POLICY_PLURAL, VERSION

Manifest = dict[str, Any]
NAME: Final = "clotho-nesting"
MAX_DEPTH: Final = 32  # the deepest field of a pod template is 13 levels below spec
PROBLEM: Final = f"it is nested more than {MAX_DEPTH} levels deep; flatten config or template"


def is_too_deep(spec: Any) -> bool:
    """Level by level and without recursion, so that no input is too deep for the check itself."""
    level = [spec]
    for _ in range(MAX_DEPTH + 1):
        level = [child for value in level for child in _children(value)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_shallow() -> str:
    """CEL has no recursion: one `all` per level, the innermost first."""

    def children(value: str) -> str:
        return f"(type({value}) == map ? {value}.map(k, {value}[k]) : type({value}) == list ? {value} : [])"

    expression = f"{children(f'v{MAX_DEPTH}')}.size() == 0"
    for depth in range(MAX_DEPTH, 0, -1):
        expression = f"{children(f'v{depth - 1}')}.all(v{depth}, {expression})"
    return f"[object.spec].all(v0, {expression})"


def nesting_policy() -> Manifest:
    """Fail on failure: an expression that grows too expensive means an object that is far too large."""
    resources = sorted({*PLURALS.values(), POLICY_PLURAL})
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [GROUP],
                        "apiVersions": [VERSION],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": resources,
                    }
                ]
            },
            "matchConditions": [
                {"name": "spec-changes", "expression": "oldObject == null || object.spec != oldObject.spec"}
            ],
            "validations": [{"expression": _is_shallow(), "message": f"spec: {PROBLEM}", "reason": "Invalid"}],
        },
    }


def nesting_binding() -> Manifest:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
