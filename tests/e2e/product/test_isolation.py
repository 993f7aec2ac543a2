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

own, other, node, other_trainer = sys.argv[1:5]
info = f"http://{own}:8000/info"
print(json.dumps({
    "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "admin token": "CLOTHO_ADMIN_TOKEN" in os.environ,
    "kubernetes": connects("10.96.0.1", 443),
    "kubernetes by name": connects("kubernetes.default.svc", 443),
    "other run": connects(other, 8000),
    "other run, another port": connects(other, 8001),
    "other run, another pod": connects(other_trainer, 8002),
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


ALONE = {"name": "letters", "config": {"group_size": 8}}


@pytest.fixture
def seen(runs: Runs, elsewhere: Runs) -> dict[str, dict[str, Any]]:
    """What two environments of a run find: one alone, one with egress to the API server of another run."""
    elsewhere.kubectl.apply(letters("other", steps=5000))
    other, other_trainer = (address_of(elsewhere, "other", kind) for kind in ("api-server", "trainer"))
    opened = {"name": "opened", "entry": "letters", "egress": [{"cidr": f"{other}/32", "ports": [8000]}]}
    runs.kubectl.apply(letters("subject", steps=5000, environments=[ALONE, opened | {"config": ALONE["config"]}]))
    runs.wait_for_phase("subject", "Running")
    elsewhere.wait_for_phase("other", "Running")
    found = {}
    for pod in runs.pods("subject", "environment"):
        where = [address_of(runs, "subject", "api-server"), other, pod["status"]["hostIP"], other_trainer]
        command = ["exec", pod["metadata"]["name"], "--", "python", "-c", LOOK_AROUND, *where]
        found[pod["metadata"]["labels"]["clotho.dev/environment"]] = json.loads(runs.kubectl.run(*command, timeout=120))
    return found


def address_of(runs: Runs, run: str, component: str) -> str:
    """Once it has one; it keeps it, though the pod is not ready yet."""

    def addresses() -> list[str]:
        return [pod["status"]["podIP"] for pod in runs.pods(run, component) if pod["status"].get("podIP")]

    runs.wait(run, f"with an address of its {component}", lambda _: addresses() != [])
    return addresses()[0]


def test_environment_pod_has_no_credentials_and_reaches_only_its_run_and_its_egress(
    seen: dict[str, dict[str, Any]],
) -> None:
    alone = {
        "token": False,
        "admin token": False,
        "kubernetes": False,
        "kubernetes by name": False,
        "other run": False,
        "other run, another port": False,
        "other run, another pod": False,
        "node": False,
        "outside": False,
        "writes root": False,
        "writes tmp": True,
        "own run, right token": 200,
        "own run, wrong token": 401,
        "own run, no token": 401,
        "user": 65532,
    }
    assert seen == {"letters": alone, "opened": alone | {"other run": True}}
