"""kubectl bound to one kubeconfig, with JSON answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clotho_dev.cluster.failure import ClusterError


class KubectlError(ClusterError):
    pass


@dataclass(frozen=True)
class Kubectl:
    program: Path
    kubeconfig: Path
    namespace: str | None = None

    def in_namespace(self, namespace: str) -> Kubectl:
        return Kubectl(self.program, self.kubeconfig, namespace)

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Standard output; an error is raised with kubectl's message."""
        scope = [f"--namespace={self.namespace}"] if self.namespace else []
        argv = [str(self.program), f"--kubeconfig={self.kubeconfig}", *scope, *arguments]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise KubectlError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run("get", *arguments, "--output=json"))
        return answer

    def apply(self, objects: Iterable[dict[str, Any]] | dict[str, Any] | str) -> None:
        documents = [objects] if isinstance(objects, dict) else objects
        text = documents if isinstance(documents, str) else yaml.safe_dump_all(documents)
        self.run("apply", "--server-side", "--field-manager=clotho-dev", "--filename=-", stdin=text)
