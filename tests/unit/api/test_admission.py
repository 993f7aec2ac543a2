"""The admission policy looks at every field that can be locked and at every limit but the operator's queue."""

from clotho.api.admission import admission_policy, binding, render
from clotho.api.lockable import LEAVES
from clotho.api.training_policy import Limits

FOUND = next(each["expression"] for each in admission_policy()["spec"]["variables"] if each["name"] == "found")


def test_every_lockable_field_is_checked() -> None:
    assert [leaf.name for leaf in LEAVES if f"dyn('{leaf.name}')" not in FOUND] == []


def test_every_limit_is_checked() -> None:
    assert {name for name in Limits.__struct_encode_fields__ if f".?limits.?{name}" not in FOUND} == {"activeRuns"}


def test_a_namespace_without_policies_takes_everything() -> None:
    assert binding()["spec"]["paramRef"] == {"selector": {}, "parameterNotFoundAction": "Allow"}
    assert admission_policy()["spec"]["failurePolicy"] == "Ignore"


def test_the_admission_policy_fits_plain_kubectl_apply() -> None:
    assert len(render(admission_policy())) < 100_000
