"""A run without environments, from its ConfigMap to a GGUF file on its claim."""

from __future__ import annotations

import json

import yaml

from clotho_dev import REPOSITORY
from e2e.product.runs import Runs, condition
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
