"""Objects stored by an earlier release keep their fields, with their meaning, under today's CRDs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RELEASES = sorted((ROOT / "tests" / "fixtures").glob("release-*"))
Schema = dict[str, Any]
UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
LOWER = ("minimum", "minLength", "minItems", "minProperties")
SAME = ("type", "format", "pattern", "x-kubernetes-int-or-string", "exclusiveMinimum", "exclusiveMaximum")

# Deliberate exceptions: the field, and why no stored object is harmed.
ACCEPTED = {
    "TrainingRun.status.attempt": "absent always meant 0, and the operator writes it at each attempt",
    "TrainingRun.spec.inference.maxBatchSize": "the API server wrote the old default, 128, into every stored run",
}


def losses(old: Schema, new: Schema, path: str) -> Iterator[str]:
    """Every way in which the new schema drops, refuses or rereads a value that the old one accepted."""
    yield from _restrictions(old, new, path)
    if old.get("x-kubernetes-preserve-unknown-fields") and not new.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{path}: unknown fields are no longer kept"
    was, now = old.get("properties", {}), new.get("properties", {})
    for name in sorted(set(new.get("required", [])) - set(old.get("required", []))):
        if "default" not in now[name]:
            yield f"{path}.{name}: became required"
    for name, inner in was.items():
        if name in now:
            yield from losses(inner, now[name], f"{path}.{name}")
        elif not new.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{path}.{name}: dropped"
    for part in ("items", "additionalProperties"):
        if isinstance(old.get(part), dict):
            if isinstance(new.get(part), dict):
                yield from losses(old[part], new[part], f"{path}[]")
            elif new.get(part) is not True:
                yield f"{path}[]: dropped"


def _restrictions(old: Schema, new: Schema, path: str) -> Iterator[str]:
    for key in SAME:
        if new.get(key) != old.get(key) and (key == "type" or key in new):
            yield f"{path}: {key} {old.get(key)} became {new.get(key)}"
    if old.get("default") != new.get("default"):
        yield f"{path}: default {old.get('default')} became {new.get('default')}"
    if "enum" in new and (gone := set(old.get("enum", ["anything"])) - set(new["enum"])):
        yield f"{path}: no longer accepts {', '.join(sorted(map(str, gone)))}"
    for key in UPPER:
        if key in new and new[key] < old.get(key, float("inf")):
            yield f"{path}: {key} {old.get(key)} became {new[key]}"
    for key in LOWER:
        if key in new and new[key] > old.get(key, float("-inf")):
            yield f"{path}: {key} {old.get(key)} became {new[key]}"
    if new.get("nullable", False) is False and old.get("nullable"):
        yield f"{path}: no longer accepts null"


def schema_of(crd: Schema, version: str) -> Schema:
    (found,) = (each for each in crd["spec"]["versions"] if each["name"] == version)
    schema: Schema = found["schema"]["openAPIV3Schema"]
    return schema


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_no_stored_field_is_dropped_or_reinterpreted(release: Path) -> None:
    found = []
    for file in sorted((release / "chart" / "files" / "crds").glob("*.yaml")):
        old, new = (yaml.safe_load(path.read_text()) for path in (file, ROOT / "crds" / file.name))
        for version in (each["name"] for each in old["spec"]["versions"] if each["served"]):
            found += losses(schema_of(old, version), schema_of(new, version), old["spec"]["names"]["kind"])
    assert [line for line in found if line.partition(":")[0] not in ACCEPTED] == [], (
        "keep the field as it was; a change of meaning needs a new name or a new API version (docs/upgrading.md)"
    )


def test_there_is_a_release_to_compare_with() -> None:
    assert RELEASES


FIELD: Schema = {"type": "integer", "minimum": 1, "maximum": 9, "default": 3}


def holder(field: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": {"size": field}, **more}


@pytest.mark.parametrize(
    ("new", "loss"),
    [
        ({"type": "object", "properties": {}}, "run.size: dropped"),
        (holder({**FIELD, "type": "string"}), "run.size: type integer became string"),
        (holder({**FIELD, "maximum": 8}), "run.size: maximum 9 became 8"),
        (holder({**FIELD, "minimum": 2}), "run.size: minimum 1 became 2"),
        (holder({**FIELD, "default": 4}), "run.size: default 3 became 4"),
        (holder({"type": "integer", "minimum": 1, "maximum": 9}), "run.size: default 3 became None"),
        (holder({**FIELD, "enum": [1, 2]}), "run.size: no longer accepts anything"),
        (holder({k: v for k, v in FIELD.items() if k != "default"}, required=["size"]), "run.size: became required"),
    ],
)
def test_narrower_schema_is_a_loss(new: Schema, loss: str) -> None:
    assert loss in list(losses(holder(FIELD), new, "run"))


@pytest.mark.parametrize(
    "new",
    [
        holder(FIELD),
        holder({**FIELD, "maximum": 99, "minimum": 0, "description": "other words"}),
        {"type": "object", "properties": {"size": FIELD, "another": {"type": "string", "default": "x"}}},
    ],
)
def test_wider_schema_is_none(new: Schema) -> None:
    assert list(losses(holder(FIELD), new, "run")) == []


def test_lists_and_maps_are_compared_too() -> None:
    listed = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}
    assert list(losses(listed, {**listed, "items": {"type": "string", "enum": ["a"]}}, "run.names")) == [
        "run.names[]: no longer accepts b"
    ]
    mapped = {"type": "object", "additionalProperties": {"type": "string"}}
    assert list(losses(mapped, {**mapped, "additionalProperties": {"type": "integer"}}, "run.labels")) == [
        "run.labels[]: type string became integer"
    ]
