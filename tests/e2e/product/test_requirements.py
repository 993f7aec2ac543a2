"""Packages that an environment names, from an index in the cluster that only its egress opens."""

from __future__ import annotations

import hashlib
import json

from e2e.product.runs import Object, Runs, condition, letters
from rig.greeting_package import ENVIRONMENT, NAME, WHEEL, wheel_contents
from rig.pods import Pods

PORT = 8080
INDEX = f"""
import http.server

class Index(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = %r if self.path.endswith(".whl") else b'<a href="{WHEEL}">{WHEEL}</a>'
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if self.path.endswith(".whl") else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("", {PORT}), Index).serve_forever()
"""


def greeting_environment(name: str, address: str, digest: str) -> Object:
    variables = {"PIP_INDEX_URL": f"http://{address}:{PORT}/", "PIP_TRUSTED_HOST": address}
    packages = {"name": "packages", "env": [{"name": key, "value": value} for key, value in variables.items()]}
    return {
        "apiVersion": "clotho.dev/v1alpha1",
        "kind": "Environment",
        "metadata": {"name": name},
        "spec": {
            "configMapName": "greeting",
            "entry": "/environment/mine.py",
            "requirements": [f"{NAME}==1.0 --hash=sha256:{digest}"],
            "egress": [{"cidr": f"{address}/32", "ports": [PORT]}],
            "template": {"spec": {"initContainers": [packages]}},
        },
    }


def test_packages_reach_the_environment_and_its_run_by_their_hash_alone(runs: Runs, python_image: str) -> None:
    wheel = wheel_contents()
    Pods(runs.kubectl, python_image).start("index", INDEX % (wheel,))
    address = runs.kubectl.get("pod/index")["status"]["podIP"]
    files = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "greeting"},
        "data": {"mine.py": ENVIRONMENT},
    }
    right = greeting_environment("greeting", address, hashlib.sha256(wheel).hexdigest())
    wrong = greeting_environment("other-hash", address, "0" * 64)
    runs.kubectl.apply([files, right, wrong])

    described = runs.wait_for("environment/greeting", "described", lambda each: condition(each, "Ready") == "True")
    assert "from the package" in json.dumps(described["status"])
    refused = runs.wait_for("environment/other-hash", "given up", lambda each: condition(each, "Stalled") == "True")
    assert f"{NAME}==1.0 has another hash in the package index" in refused["status"]["message"]

    named = {"name": "greeting", "environmentName": "greeting", "config": {"group_size": 8}}
    runs.kubectl.apply(letters("greeting", steps=3, environments=[named]))
    assert runs.wait_for_phase("greeting", "Completed", "Failed")["status"]["phase"] == "Completed"
