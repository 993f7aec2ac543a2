"""Which credentials are used: those of a kubeconfig, or those of the pod's service account."""

import os
import ssl
from pathlib import Path

from clotho.cluster.credentials import Credentials, read_text
from clotho.cluster.kubeconfig import from_kubeconfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load(kubeconfig: Path | None = None) -> Credentials:
    """For the operator: the kubeconfig that was named, else the pod's service account, else those that kubectl uses."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig)
    return in_cluster() if _is_in_cluster() else from_kubeconfig(_default_files())


def load_as_kubectl(kubeconfig: Path | None, context: str) -> Credentials:
    """For people: the kubeconfig that was named, else those that kubectl uses, else the pod's service account."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig, context)
    files = _default_files()
    if not any(path.exists() for path in files) and _is_in_cluster():
        return in_cluster()
    return from_kubeconfig(files, context)


def _default_files() -> list[Path]:
    """$KUBECONFIG may name several, of which some may not exist; else ~/.kube/config."""
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if not named:
        return [Path.home() / ".kube" / "config"]
    return [path for path in named if path.exists()] or named


def _is_in_cluster() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists()


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Credentials:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"[{host}]" if ":" in host else host
    namespace = folder / "namespace"
    return Credentials(
        server=f"https://{address}:{port}",
        tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        read_token=lambda: read_text(folder / "token").strip(),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )
