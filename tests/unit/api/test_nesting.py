"""A spec that is nested too deep is not decoded: it is reported, and the check itself never recurses."""

from typing import Any

import pytest

from clotho.api import environment, inference_tests, training_policy, training_run
from clotho.api.nesting import MAX_DEPTH, is_too_deep


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize(("levels", "too_deep"), [(0, False), (MAX_DEPTH, False), (MAX_DEPTH + 1, True), (5_000, True)])
def test_depth_is_measured_in_objects_and_lists(levels: int, too_deep: bool) -> None:
    assert is_too_deep(nested(levels)) is too_deep


@pytest.mark.parametrize("parse", [environment.parse, inference_tests.parse, training_policy.parse, training_run.parse])
def test_every_kind_reports_a_spec_that_is_too_deep(parse: Any) -> None:
    found = parse({"metadata": {"name": "n", "uid": "u"}, "spec": {"config": {"a": nested(5_000)}}})
    assert found.problem == "spec: it is nested more than 32 levels deep; flatten config or template"
