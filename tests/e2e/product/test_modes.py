"""Runs without environments: one that ends as a GGUF file on its claim, and one that learns what its tool answers."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from clotho_dev import REPOSITORY
from e2e.product.runs import Object, Runs, condition
from rig.pods import Pods


def test_an_inline_run_learns_and_is_exported(runs: Runs, python_image: str) -> None:
    for manifest in yaml.safe_load_all((REPOSITORY / "examples" / "cpu-quickstart" / "inline.yaml").read_text()):
        runs.kubectl.apply(manifest)
    done = runs.wait_for_phase("repeat", "Completed", "Failed")
    status = done["status"]
    assert status["phase"] == "Completed", status["message"]
    components = [pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in runs.pods("repeat")]
    assert sorted({"exporter", *components}) == ["exporter", "trainer"], "the exporter's pod comes after the end"
    assert "apiServer" not in status["components"]
    assert status["history"][0]["rewardMean"] < 0.3
    assert status["results"]["rewardMean"] > 0.6

    exported = runs.wait("repeat", "exported", lambda run: run["status"].get("export", {}).get("phase") == "Completed")
    assert condition(exported, "Exported") == "True"
    export = exported["status"]["export"]
    (model,) = [file for file in export["files"] if file["path"].endswith(".gguf")]
    folder = export["folder"].removeprefix("/var/lib/clotho/")
    script = f"""
import hashlib, json
content = open("/data/{folder}/{model["path"]}", "rb").read()
print(json.dumps([content[:4].decode(), len(content), hashlib.sha256(content).hexdigest()]))
"""
    claim = status["results"]["claim"]
    assert json.loads(Pods(runs.kubectl, python_image).run("reader", script, claim=claim)) == [
        "GGUF", model["bytes"], model["sha256"],
    ]  # fmt: skip


def test_a_run_with_tools_learns_what_they_answer(runs: Runs) -> None:
    """The example with ECHO, with a model and sizes for a CPU."""
    files, run = yaml.safe_load_all((REPOSITORY / "examples" / "tools-echo" / "tools.yaml").read_text())
    files["data"]["desk_model.py"] = (Path(__file__).parent / "desk_model.py").read_text()
    spec = run["spec"]
    teacher = {
        "name": "make-model",
        "command": ["python", "/desk/desk_model.py", "/models/desk", spec["inline"]["instructions"]],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}, {"name": "desk", "mountPath": "/desk"}],
    }
    volumes = [{"name": "desk", "configMap": {"name": files["metadata"]["name"]}}]
    spec["model"] = {"name": "/models/desk", "dtype": "float32"}
    spec["inline"]["maxCompletionTokens"] = 32
    spec["training"] |= {"steps": 8, "batchSize": 24, "maxTokens": 256, "learningRate": 0.001}
    spec["trainer"] = {"gpus": 0, "template": {"spec": {"initContainers": [teacher], "volumes": volumes}}}
    for manifest in (files, run):
        runs.kubectl.apply(manifest)
    done = runs.wait_for_phase("desk", "Completed", "Failed")
    assert done["status"]["phase"] == "Completed", done["status"]["message"]
    figures = history_of(runs, done)["figures"]
    assert min(figures["toolsCallsPerRollout"]) > 0.5
    assert figures["worldModelLoss"][-1] < figures["worldModelLoss"][0] * 0.8


def history_of(runs: Runs, run: Object) -> Object:
    """Its curves. A busy node hands over the trainer's log a little later."""
    name = f"{run['metadata']['name']}-{run['metadata']['uid'][:8]}-history"
    steps = list(range(1, run["status"]["progress"]["step"] + 1))
    kept = runs.wait_for(f"configmap/{name}", "whole", lambda found: series_in(found).get("steps") == steps)
    return series_in(kept)


def series_in(config_map: Object) -> Object:
    series: Object = json.loads(config_map.get("data", {}).get("series.json", "{}"))
    return series
