"""The TrainingRun CRD, generated from the types: `python -m clotho.api.crd FOLDER` writes it."""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from clotho.api.names import GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from clotho.api.rules import add_rules
from clotho.api.schema import Schema, schema_of, without_defaults
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRunSpec

FILE: Final = f"{GROUP}_{PLURAL}.yaml"
_HEADER: Final = "# Generated from operator/clotho/api by `python -m clotho.api.crd`; change it there.\n"


def training_run_crd() -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["all", "clotho"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _schema() -> Schema:
    status = without_defaults(schema_of(TrainingRunStatus))
    # A run that no operator has seen yet is in progress (kstatus), and its phase is not blank.
    status["default"] = {"observedGeneration": -1, "phase": "Pending"}
    status["properties"]["restarts"]["default"] = 0  # so that its column says 0 instead of nothing
    root = {
        "type": "object",
        "description": "A reinforcement-learning fine-tuning run: an API server, a trainer that serves the policy it "
        "trains, and environments that produce scored trajectories.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema_of(TrainingRunSpec),
            "status": status,
        },
    }
    add_rules(root)
    return root


def _columns() -> list[Schema]:
    def column(name: str, kind: str, path: str, **more: object) -> Schema:
        return {"name": name, "type": kind, "jsonPath": path, **more}

    return [
        column("Phase", "string", ".status.phase"),
        column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        column("Step", "integer", ".status.progress.step"),
        column("Progress", "integer", ".status.progress.percent", description="Steps done, in percent."),
        column("Reward", "number", ".status.progress.rewardMean", description="Mean reward of the last batch."),
        column("Restarts", "integer", ".status.restarts"),
        column("Age", "date", ".metadata.creationTimestamp"),
        column("Steps", "integer", ".spec.training.steps", priority=1),
        column("Model", "string", ".spec.model.name", priority=1),
        column("GPUs", "integer", ".spec.trainer.gpus", priority=1),
        column("Message", "string", ".status.message", priority=1),
    ]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def render() -> str:
    body: str = yaml.dump(training_run_crd(), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return _HEADER + body


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "crds")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(render())


if __name__ == "__main__":
    main()
