"""The values of the chart: the operator's settings with its defaults, every key explained, no unknown key accepted."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from clotho.manager import settings
from clotho.render.settings import Images

CHART = Path(__file__).parents[3] / "charts" / "clotho"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())

# Settings that the chart itself decides; everything else of the operator is a value under `settings`.
DECIDED_BY_THE_CHART = {"api.kubeconfig", "lease.enabled", "lease.namespace", "lease.name", "lease.identity"}
GROUPS_ELSEWHERE = {"watch", "images", "network", "notifications", "server"}


def test_settings_are_the_operators_with_its_defaults() -> None:
    expected = {
        group: {camel(knob.name): knob.default for knob in knobs if f"{group}.{knob.name}" not in DECIDED_BY_THE_CHART}
        for group, _, knobs in settings.groups()
        if group not in GROUPS_ELSEWHERE
    }
    assert VALUES["settings"] == expected


def test_images_are_the_operators() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    registry = VALUES["images"]["registry"]
    assert Images() == Images(
        api_server=f"{registry}/api-server:{version}",
        trainer=f"{registry}/trainer:{version}",
        environment=f"{registry}/environment:{version}",
    )


def test_every_object_of_the_schema_restricts_its_properties() -> None:
    open_ended = [path for path, node in objects(SCHEMA, "$") if not {"additionalProperties", "required"} & node.keys()]
    kubernetes_own = [path for path in open_ended if re.search(r"affinity|Selector$|ipBlock$|global$", path)]
    assert open_ended == kubernetes_own


def test_schema_and_values_have_the_same_keys() -> None:
    assert keys_of_schema(SCHEMA) - {"global"} == keys_of_values(VALUES)


def test_every_value_is_explained() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    silent = [
        line.strip()
        for before, line in itertools.pairwise(lines)
        if re.match(r"^ *\w+:", line) and not line.rstrip().endswith(":") and not is_explained(before)
    ]
    assert silent == []


def is_explained(before: str) -> bool:
    """A comment above, or a neighbour that shares one."""
    return before.strip().startswith("#") or bool(re.match(r"^ *\w+: ", before))


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def objects(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield path, node
        for key, child in node.items():
            yield from objects(child, f"{path}.{key}")


def keys_of_schema(node: dict[str, Any], prefix: str = "") -> set[str]:
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].rsplit("/", 1)[1]]
    found: set[str] = set()
    for key, child in node.get("properties", {}).items():
        path = f"{prefix}{key}"
        below = keys_of_schema(child, f"{path}.")
        found |= below if below and not re.search(r"^affinity|resources$", path) else {path}
    return found


def keys_of_values(node: dict[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, child in node.items():
        path = f"{prefix}{key}"
        is_branch = isinstance(child, dict) and child and not re.search(r"resources$|dashboards\.labels$", path)
        found |= keys_of_values(child, f"{path}.") if is_branch else {path}
    return found
