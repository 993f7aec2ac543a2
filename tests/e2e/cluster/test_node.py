"""The embedded node behaves as a cluster should: pods, names, addresses, volumes, logs, exec and policies."""

from __future__ import annotations

import pytest

from clotho_dev.cluster.kubectl import Kubectl, KubectlError
from rig.pods import Pods, python_pod

SERVE = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8080, bind='0.0.0.0')"
SERVER_LABELS = {"role": "server"}


def fetch(host: str, timeout: float = 3) -> str:
    """Code that prints 200, or the name of what went wrong."""
    return f"""
import urllib.request
try: print(urllib.request.urlopen("http://{host}:8080/", timeout={timeout}).status)
except OSError as error: print(type(error.reason if hasattr(error, "reason") else error).__name__)
"""


def until_fetched(host: str) -> str:
    """Endpoints and rules take a moment to reach the node: ask again until it answers."""
    return f"""
import time, urllib.request
for attempt in range(60):
    try: print(urllib.request.urlopen("http://{host}:8080/", timeout=2).status); break
    except OSError: time.sleep(0.5)
"""


@pytest.fixture
def pods(kubectl: Kubectl, namespace: str, python_image: str) -> Pods:
    return Pods(kubectl.in_namespace(namespace), python_image)


def service(*, headless: bool) -> dict[str, object]:
    spec = {"selector": SERVER_LABELS, "ports": [{"port": 8080}]} | ({"clusterIP": "None"} if headless else {})
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"}, "spec": spec}


def test_restricted_pod_runs_and_is_deleted(pods: Pods) -> None:
    assert pods.run("hello", "import os; print(os.getuid())") == "65532"
    pods.kubectl.run("delete", "pod", "hello", "--timeout=60s")
    with pytest.raises(KubectlError, match="not found"):
        pods.kubectl.get("pod/hello")


def test_privileged_pod_is_refused(pods: Pods) -> None:
    pod = python_pod("greedy", pods.image, "pass")
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        pods.kubectl.apply(pod)


@pytest.mark.parametrize("headless", [True, False], ids=["headless service", "cluster IP"])
def test_service_name_resolves_and_answers(pods: Pods, headless: bool) -> None:
    pods.start("server", SERVE, labels=SERVER_LABELS)
    pods.kubectl.apply(service(headless=headless))
    assert pods.run("client", until_fetched("server")) == "200"


def test_claim_binds_and_keeps_data_across_pods(pods: Pods) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
    pods.kubectl.apply(claim)
    pods.run("writer", "open('/data/word', 'w').write('kept')", claim="data")
    assert pods.run("reader", "print(open('/data/word').read())", claim="data") == "kept"


def test_logs_and_exec_reach_the_container(pods: Pods) -> None:
    pods.start("server", f"print('started'); {SERVE}", labels=SERVER_LABELS)
    assert pods.execute("server", "print(6 * 7)") == "42"
    assert "started" in pods.kubectl.run("logs", "server")


def test_default_deny_blocks_and_allow_rule_opens(pods: Pods) -> None:
    pods.start("server", SERVE, labels=SERVER_LABELS)
    pods.kubectl.apply(service(headless=True))
    pods.start("client", "import time; time.sleep(600)", labels={"role": "client"})
    assert pods.execute("client", until_fetched("server")) == "200"

    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "server"},
        "spec": {"podSelector": {"matchLabels": SERVER_LABELS}, "policyTypes": ["Ingress"]},
    }
    pods.kubectl.apply(policy)
    assert pods.execute("client", until_refused("server")) == "refused"

    policy["spec"] |= {"ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}]}
    pods.kubectl.apply(policy)
    assert pods.execute("client", until_fetched("server")) == "200"
    assert pods.run("unlabelled", fetch("server")) != "200"


def until_refused(host: str) -> str:
    """The policy engine needs a moment, too."""
    return f"""
import time, urllib.request
for attempt in range(30):
    try: urllib.request.urlopen("http://{host}:8080/", timeout=1); time.sleep(0.3)
    except OSError: print("refused"); break
"""


def test_pods_cannot_reach_the_internet(pods: Pods) -> None:
    documentation_address = "198.51.100.1"  # reserved: the packet must not leave this machine
    assert pods.run("explorer", fetch(documentation_address)) != "200"


def test_released_volume_is_offered_again(pods: Pods) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
    pods.kubectl.apply(claim)
    pods.run("writer", "open('/data/word', 'w').write('secret')", claim="data")
    volume = pods.kubectl.get("pvc/data")["spec"]["volumeName"]
    pods.kubectl.run("delete", "pod/writer", "pvc/data", "--timeout=60s")
    pods.kubectl.run("wait", f"pv/{volume}", "--for=jsonpath={.status.phase}=Available", "--timeout=60s", timeout=70)

    claim["spec"] = spec | {"volumeName": volume}
    pods.kubectl.apply(claim)
    assert pods.run("reader", "import os; print(os.listdir('/data'))", claim="data") == "[]"
