"""An environment runs untrusted code: its pod has no credentials but its own and reaches nothing beyond its run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.product.runs import Runs, letters

LOOK_AROUND = """
import json, os, socket, sys, urllib.error, urllib.request

def connects(host, port):
    try: socket.create_connection((host, port), timeout=3).close(); return True
    except OSError: return False

def writes(path):
    try: open(path, "w").close(); return True
    except OSError: return False

def status(url, headers):
    try: return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5).status
    except urllib.error.HTTPError as error: return error.code
    except OSError as error: return type(error).__name__

own, other, node = sys.argv[1:4]
info = f"http://{own}:8000/info"
print(json.dumps({
    "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "admin token": "CLOTHO_ADMIN_TOKEN" in os.environ,
    "kubernetes": connects("10.96.0.1", 443),
    "kubernetes by name": connects("kubernetes.default.svc", 443),
    "other run": connects(other, 8000),
    "node": connects(node, 10250),
    "outside": connects("198.51.100.1", 443),
    "writes root": writes("/opt/app/x"),
    "writes tmp": writes("/tmp/x"),
    "own run, right token": status(info, {"Authorization": "Bearer " + os.environ["CLOTHO_TOKEN"]}),
    "own run, wrong token": status(info, {"Authorization": "Bearer wrong"}),
    "own run, no token": status(info, {}),
    "user": os.getuid(),
}))
"""


@pytest.fixture
def seen(runs: Runs, elsewhere: Runs) -> dict[str, Any]:
    """What an environment pod finds, while another run trains beside it."""
    for where in (runs, elsewhere):
        where.kubectl.apply(letters("subject", steps=5000))
    for where in (runs, elsewhere):
        where.wait_for_phase("subject", "Running")
    address = {where: where.pods("subject", "api-server")[0]["status"]["podIP"] for where in (runs, elsewhere)}
    pod = runs.pods("subject", "environment")[0]
    node = pod["status"]["hostIP"]
    command = [
        "exec",
        pod["metadata"]["name"],
        "--",
        "python",
        "-c",
        LOOK_AROUND,
        address[runs],
        address[elsewhere],
        node,
    ]
    found: dict[str, Any] = json.loads(runs.kubectl.run(*command, timeout=120))
    return found


def test_environment_pod_has_no_credentials_and_reaches_only_its_run(seen: dict[str, Any]) -> None:
    assert seen == {
        "token": False,
        "admin token": False,
        "kubernetes": False,
        "kubernetes by name": False,
        "other run": False,
        "node": False,
        "outside": False,
        "writes root": False,
        "writes tmp": True,
        "own run, right token": 200,
        "own run, wrong token": 401,
        "own run, no token": 401,
        "user": 65532,
    }
