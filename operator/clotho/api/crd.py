"""The CRDs, generated from the types: `python -m clotho.api.crd FOLDER` writes one file a kind."""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from clotho.api.definitions import DEFINITIONS, Definition
from clotho.api.forms import explain_patterns
from clotho.api.names import GROUP, VERSION
from clotho.api.rules import add_rules
from clotho.api.schema import Schema, schema_of, without_defaults

_HEADER: Final = "# Generated from operator/clotho/api by `python -m clotho.api.crd`; change it there.\n"


def file_name(definition: Definition) -> str:
    return f"{GROUP}_{definition.plural}.yaml"


def crd(definition: Definition) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": [definition.short_name],
                "categories": ["all", "clotho"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if definition.status else {}),
                    "additionalPrinterColumns": list(definition.columns),
                    "schema": {"openAPIV3Schema": _schema(definition)},
                }
            ],
        },
    }


def _schema(definition: Definition) -> Schema:
    spec = schema_of(definition.spec)
    explain_patterns(spec)
    root = {
        "type": "object",
        "description": definition.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},  # a rule names it
            "spec": spec,
            **({"status": _status(definition, definition.status)} if definition.status else {}),
        },
    }
    add_rules(root, definition.rules)
    return root


def _status(definition: Definition, kind: type) -> Schema:
    status = without_defaults(schema_of(kind))
    status["default"] = definition.fresh
    status["x-kubernetes-map-type"] = "atomic"  # written as a whole: the owners of single fields need not be kept
    for name, value in definition.always.items():
        status["properties"][name]["default"] = value
    return status


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def render(definition: Definition) -> str:
    body: str = yaml.dump(crd(definition), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return _HEADER + body


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "crds")
    folder.mkdir(parents=True, exist_ok=True)
    for definition in DEFINITIONS:
        (folder / file_name(definition)).write_text(render(definition))


if __name__ == "__main__":
    main()
