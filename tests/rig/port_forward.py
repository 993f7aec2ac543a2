"""`kubectl port-forward`, as a person would reach a Service from their machine."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.process import die_with_parent


@contextmanager
def forwarded(kubectl: Kubectl, target: str, port: int) -> Iterator[str]:
    """The address that kubectl prints, on a port of its choice."""
    scope = [f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}"]
    argv = [str(kubectl.program), *scope, "port-forward", target, f":{port}"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)  # noqa: PLW1509 - called from the main thread only
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"Forwarding from (127\.0\.0\.1:\d+)", line)
        assert found, f"kubectl port-forward {target}: {line}"
        yield f"http://{found[1]}"
    finally:
        process.terminate()
        process.communicate()
