"""Free-form objects on a real API server: a spec that is nested too deep is never stored."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho.api.names import API_VERSION, ENVIRONMENT_KIND, INFERENCE_TEST_KIND, KIND, POLICY_KIND
from clotho.api.nesting import MAX_DEPTH, nesting_binding, nesting_policy
from clotho_dev.cluster.kubectl import Kubectl, KubectlError
from unit.render.cases import CASES

CRDS = Path(__file__).parents[3] / "crds"
Body = dict[str, Any]


def nested(levels: int) -> Body:
    """Objects and lists in alternation."""
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return {"a": value}


def manifest(kind: str, spec: Body) -> str:
    return yaml.safe_dump({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "demo"}, "spec": spec})


def deep_manifest(levels: int) -> str:
    """JSON as text: a thousand levels are too many for Python's encoders."""
    config = '{"a":' * levels + "1" + "}" * levels
    return (
        f'{{"apiVersion": "{API_VERSION}", "kind": "{ENVIRONMENT_KIND}", "metadata": {{"name": "demo"}}, '
        f'"spec": {{"entry": "letters", "config": {config}}}}}'
    )


@pytest.fixture(scope="module")
def bounded(kubectl: Kubectl) -> Iterator[Kubectl]:
    kubectl.run("apply", "--server-side", f"--filename={CRDS}")
    kubectl.run("wait", "--for=condition=Established", "--timeout=30s", f"--filename={CRDS}")
    kubectl.apply([nesting_policy(), nesting_binding()])
    team = kubectl.in_namespace("default")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # a policy reaches admission a moment after it is written
        try:
            team.run("create", "--dry-run=server", "--filename=-", stdin=deep_manifest(100))
        except KubectlError:
            break
        time.sleep(0.2)
    yield team
    kubectl.run("delete", "--filename=-", stdin=yaml.safe_dump_all([nesting_binding(), nesting_policy()]))


def specs(config: Body) -> list[tuple[str, Body]]:
    environment = CASES["smallest"]["environments"][0]
    return [
        (KIND, CASES["smallest"] | {"environments": [environment | {"config": {"group_size": 4} | config}]}),
        (KIND, CASES["smallest"] | {"trainer": {"template": {"metadata": {"annotations": config}}}}),
        (ENVIRONMENT_KIND, {"entry": "letters", "config": config}),
        (INFERENCE_TEST_KIND, {"entry": "letters", "config": config}),
        (POLICY_KIND, {"locked": {"environmentConfig": config}}),
    ]


@pytest.mark.parametrize(("kind", "spec"), specs(nested(MAX_DEPTH)))
def test_deep_specs_are_refused(bounded: Kubectl, kind: str, spec: Body) -> None:
    with pytest.raises(KubectlError, match=f"spec: it is nested more than {MAX_DEPTH} levels deep; flatten config"):
        bounded.run("create", "--dry-run=server", "--filename=-", stdin=manifest(kind, spec))


@pytest.mark.parametrize(("kind", "spec"), specs(nested(12)))
def test_ordinary_depth_is_accepted(bounded: Kubectl, kind: str, spec: Body) -> None:
    bounded.run("create", "--dry-run=server", "--filename=-", stdin=manifest(kind, spec))


@pytest.mark.parametrize("levels", [1_000, 9_000])
def test_depth_that_breaks_decoders_is_refused(bounded: Kubectl, levels: int) -> None:
    with pytest.raises(KubectlError, match="nested more than"):
        bounded.run("create", "--dry-run=server", "--filename=-", stdin=deep_manifest(levels))


def test_a_large_flat_config_is_accepted(bounded: Kubectl) -> None:
    config = {f"key{number}": {"values": list(range(10))} for number in range(500)}
    spec = {"entry": "letters", "config": config}
    bounded.run("create", "--dry-run=server", "--filename=-", stdin=manifest(ENVIRONMENT_KIND, spec))
