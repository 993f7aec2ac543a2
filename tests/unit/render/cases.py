"""The runs whose manifests are recorded, and a way to look at all objects of a run at once."""

import base64
from typing import Any

from clotho.api.training_run import TrainingRun, parse
from clotho.plan.model import Apply, Create, Observed
from clotho.plan.run.plan import plan
from clotho.plan.settings import PlanSettings
from clotho.render.settings import Images, RenderSettings
from unit.plan.run.world import START

Body = dict[str, Any]
SETTINGS = RenderSettings(
    images=Images(api_server="api-server:test", trainer="trainer:test", environment="environment:test"),
    image_pull_secrets=("registry",),
    test_namespaces=("models",),
)

CASES: dict[str, Body] = {
    "smallest": {
        "model": {"name": "Qwen/Qwen3-8B"},
        "environments": [{"name": "letters"}],
        "training": {"steps": 100},
    },
    "everything": {
        "model": {"name": "/models/qwen3-8b", "claimName": "models", "secretName": "hub", "quantization": "nf4"},
        "environments": [
            {
                "name": "gsm8k",
                "replicas": 2,
                "weight": 2,
                "minBatchAllocation": 0.25,
                "image": "registry/gsm8k:3",
                "entry": "atropos:/app/gsm8k.py",
                "config": {"group_size": 16, "tokenizer": {"padding": "left"}},
                "template": {"metadata": {"annotations": {"team": "reasoning"}}},
            },
            {"name": "letters", "replicas": 0},
        ],
        "training": {"steps": 2500, "backend": "tinker", "learningRate": 0.00001},
        "trainer": {
            "gpus": 1,
            "disruptionBudget": True,
            "tinkerSecretName": "tinker",
            "template": {
                "spec": {
                    "nodeSelector": {"gpu": "h200"},
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "containers": [{"name": "main", "resources": {"limits": {"cpu": "16"}}}],
                }
            },
        },
        "apiServer": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}},
        "storage": {"size": "1Ti", "apiServerSize": "100Gi", "storageClassName": "fast", "retain": False},
        "tracking": {"wandb": {"project": "clotho", "secretName": "wandb"}},
        "stall": {"afterSeconds": 900},
    },
    "two-nodes": {
        "model": {"name": "Qwen/Qwen3-8B"},
        "environments": [{"name": "letters"}],
        "training": {"steps": 100},
        "trainer": {"replicas": 2, "gpus": 2, "disruptionBudget": True},
    },
    "replicas": {
        "model": {"name": "Qwen/Qwen3-8B", "secretName": "hub"},
        "environments": [{"name": "letters"}],
        "training": {"steps": 100, "maxStaleness": 4},
        "inference": {"replicas": 1},
        "tracking": {"wandb": {"secretName": "wandb"}},
    },
    "on-the-cpu": {
        "model": {"name": "/models/tiny", "dtype": "float32"},
        "environments": [{"name": "letters", "config": {"group_size": 8}}],
        "training": {"steps": 60, "batchSize": 64},
        "trainer": {
            "gpus": 0,
            "template": {
                "spec": {
                    "initContainers": [
                        {
                            "name": "tiny-model",
                            "command": ["python", "-m", "clotho_trainer", "tiny-model", "/models/tiny"],
                            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                        }
                    ]
                }
            },
        },
        "storage": {"ephemeral": True},
    },
    "inline": {
        "model": {"name": "Qwen/Qwen3-0.6B"},
        "inline": {
            "dataset": {"configMapName": "sums", "path": "train.jsonl"},
            "code": {"claimName": "our-code"},
            "rewards": {"measures": [{"name": "correct", "entry": "rewards:correct"}]},
        },
        "training": {"steps": 100},
    },
}


def run_of(spec: Body, name: str = "demo") -> TrainingRun:
    metadata = {"name": name, "namespace": "team", "uid": "0123abcd-0000-4000-8000-000000000000", "generation": 1}
    run = parse({"metadata": metadata, "spec": spec})
    assert isinstance(run, TrainingRun), run
    return run


def render_all(spec: Body) -> list[Body]:
    """Everything that the first pass creates; the config file is shown as text."""
    wanted = plan(run_of(spec), Observed(), START, PlanSettings(render=SETTINGS))
    manifests = [action.manifest for action in wanted.actions if isinstance(action, Create | Apply)]
    return [_readable(manifest) for manifest in manifests]


def _readable(manifest: Body) -> Body:
    if manifest["kind"] != "Secret":
        return manifest
    return manifest | {"data": {key: base64.b64decode(value).decode() for key, value in manifest["data"].items()}}
