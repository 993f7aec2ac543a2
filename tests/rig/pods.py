"""Small Python pods under `restricted` Pod Security, in which tests run checks inside the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clotho_dev.cluster.kubectl import Kubectl

Manifest = dict[str, Any]


def python_pod(name: str, image: str, code: str, *, labels: dict[str, str] | None = None, claim: str = "") -> Manifest:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    mounts = [{"name": "data", "mountPath": "/data"}] if claim else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": ["python3", "-u", "-c", code],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


@dataclass(frozen=True)
class Pods:
    """Runs them in one namespace with one image."""

    kubectl: Kubectl
    image: str

    def start(self, name: str, code: str, *, labels: dict[str, str] | None = None, claim: str = "") -> None:
        """A pod that keeps running; returns once it does."""
        self.kubectl.apply(python_pod(name, self.image, code, labels=labels, claim=claim))
        self.kubectl.run("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s", timeout=70)

    def run(self, name: str, code: str, *, labels: dict[str, str] | None = None, claim: str = "") -> str:
        """A pod that ends well; returns what it printed."""
        self.kubectl.apply(python_pod(name, self.image, code, labels=labels, claim=claim))
        over = "--for=jsonpath={.status.containerStatuses[0].state.terminated}"
        self.kubectl.run("wait", f"pod/{name}", over, "--timeout=60s", timeout=70)
        output = self.kubectl.run("logs", name).strip()
        (ended,) = self.kubectl.get(f"pod/{name}")["status"]["containerStatuses"]
        assert ended["state"]["terminated"]["exitCode"] == 0, output
        return output

    def execute(self, name: str, code: str) -> str:
        return self.kubectl.run("exec", name, "--", "python3", "-c", code, timeout=90).strip()
