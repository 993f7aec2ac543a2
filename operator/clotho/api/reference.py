"""The API reference in docs/, made from the CRDs: what `kubectl explain` shows, on one page."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clotho.api.crd import crd
from clotho.api.definitions import DEFINITIONS, Definition

Schema = Mapping[str, Any]
HEADER = """# API reference (`clotho.dev/v1alpha1`)

Generated from the CRDs by `make crds`; `kubectl explain trainingrun.spec` shows the same. Bold fields are required.
"""
TABLE = "| field | type | default | meaning |\n|---|---|---|---|\n"


def reference() -> str:
    return HEADER + "".join(_section(definition) for definition in DEFINITIONS)


def _section(definition: Definition) -> str:
    schema = crd(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    rows = [row for part in ("spec", "status") if part in schema for row in _rows(part, schema[part])]
    return f"\n## {definition.kind}\n\n{definition.description}\n\n{TABLE}" + "".join(f"{row}\n" for row in rows)


def _rows(path: str, schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        shown = f"**`{here}`**" if name in required else f"`{here}`"
        default = f"`{field['default']}`" if "default" in field and not isinstance(field["default"], dict) else ""
        meaning = " ".join(str(field.get("description", "")).split()).replace("|", "\\|")
        yield f"| {shown} | {_type(field)} | {default} | {meaning} |"
        yield from _rows(f"{here}[]" if field.get("type") == "array" else here, field.get("items", field))


def _type(field: Schema) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    return str(field.get("type", "any"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference())
