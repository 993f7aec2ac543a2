"""The API reference in docs/, made from the CRD: what `kubectl explain` says, on one page."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clotho.api.crd import training_run_crd

Schema = Mapping[str, Any]
HEADER = """# API reference: TrainingRun (`clotho.dev/v1alpha1`)

Generated from the CRD by `make crds`; `kubectl explain trainingrun.spec` says the same. Bold fields are required.

| field | type | default | meaning |
|---|---|---|---|
"""


def reference() -> str:
    schema = training_run_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    rows = [row for part in ("spec", "status") for row in _rows(part, schema[part])]
    return HEADER + "".join(f"{row}\n" for row in rows)


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
