"""A real API server in a few seconds, without root: etcd, kube-apiserver, controller manager and scheduler."""

from __future__ import annotations

import base64
import http.client
import shutil
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.pki import Authority, Identity
from clotho_dev.cluster.process import Component, Processes
from clotho_dev.ports import free_port

SERVICE_RANGE = "10.96.0.0/16"
KUBERNETES_SERVICE_ADDRESS = "10.96.0.1"
LOOPBACK = "127.0.0.1"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


@dataclass(frozen=True)
class Addresses:
    """Where the API server listens, and for a real node: the address pods find it under, the port the host uses."""

    port: int
    node: str | None = None
    host_port: int | None = None

    @property
    def bind(self) -> str:
        return "0.0.0.0" if self.node else LOOPBACK  # noqa: S104 - inside the cluster's own network namespace


class ControlPlane:
    """Used as a context manager by tests, and started by the supervisor of a longer-lived cluster."""

    def __init__(
        self,
        folder: Path,
        programs: Mapping[str, Path],
        addresses: Addresses | None = None,
        *,
        audit_log: bool = False,
    ) -> None:
        self.folder = folder
        self.programs = programs
        self.addresses = addresses or Addresses(free_port())
        self.audit_log = folder / "logs" / "audit.log" if audit_log else None
        self.processes = Processes(folder / "logs")
        self.authority = Authority(folder / "pki")
        self.kubeconfig = self.write_kubeconfig("kubeconfig", "admin", ["system:masters"], self.addresses.host_port)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.processes.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.kill()

    def start(self) -> None:
        etcd_port = free_port()
        self.processes.start(self._etcd(etcd_port))
        self.processes.wait_ready()
        service_accounts = self.authority.signing_key("service-accounts")
        self.processes.start(self._api_server(etcd_port, service_accounts))
        self.processes.wait_ready()
        self.processes.start(self._controller_manager(service_accounts))
        self.processes.start(self._scheduler())
        self.processes.wait_ready()

    def write_kubeconfig(self, file: str, user: str, groups: list[str] | None = None, port: int | None = None) -> Path:
        """Certificates are embedded, so that the file can be copied anywhere."""
        identity = self.authority.issue_client(user.replace(":", "-"), user, groups or [])
        name = "clotho-embedded"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": f"https://{LOOPBACK}:{port or self.addresses.port}",
                        "certificate-authority-data": _base64(self.authority.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": _base64(identity.certificate),
                        "client-key-data": _base64(identity.key),
                    },
                }
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }
        path = self.folder / file
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document))
        return path

    def _etcd(self, port: int) -> Component:
        data = self.folder / "etcd"
        shutil.rmtree(data, ignore_errors=True)
        client, peer = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{free_port()}"
        argv = [
            str(self.programs["etcd"]),
            f"--data-dir={data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # a cluster that does not outlive the machine need not survive a power cut
            "--log-level=warn",
        ]
        return Component("etcd", argv, lambda: answers(f"http://{LOOPBACK}:{port}/health"))

    def _api_server(self, etcd_port: int, service_accounts: Identity) -> Component:
        hosts = [
            "localhost",
            LOOPBACK,
            KUBERNETES_SERVICE_ADDRESS,
            *([self.addresses.node] if self.addresses.node else []),
        ]
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        serving = self.authority.issue_server("kube-apiserver", [*hosts, *names])
        kubelet_client = self.authority.issue_client("kubelet-client", "kube-apiserver", ["system:masters"])
        argv = [
            str(self.programs["kube-apiserver"]),
            f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
            f"--bind-address={self.addresses.bind}",
            f"--secure-port={self.addresses.port}",
            f"--advertise-address={self.addresses.node or LOOPBACK}",
            f"--endpoint-reconciler-type={'lease' if self.addresses.node else 'none'}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={service_accounts.certificate}",
            f"--service-account-signing-key-file={service_accounts.key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--cert-dir={self.folder / 'pki'}",
            "--profiling=false",
            *self._audit_flags(),
        ]
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        ready = f"https://{LOOPBACK}:{self.addresses.port}/readyz"
        return Component("kube-apiserver", argv, lambda: answers(ready, context))

    def _audit_flags(self) -> list[str]:
        if self.audit_log is None:
            return []
        policy = self.folder / "audit-policy.yaml"
        rules = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
        policy.write_text(yaml.safe_dump(rules))
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]

    def _controller_manager(self, service_accounts: Identity) -> Component:
        port = free_port()
        argv = [
            str(self.programs["kube-controller-manager"]),
            f"--kubeconfig={self.write_kubeconfig('controller-manager.kubeconfig', 'system:kube-controller-manager')}",
            f"--service-account-private-key-file={service_accounts.key}",
            f"--root-ca-file={self.authority.certificate}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'pki'}",
        ]
        return Component(
            "kube-controller-manager", argv, lambda: answers(f"https://{LOOPBACK}:{port}/healthz", TRUSTING)
        )

    def _scheduler(self) -> Component:
        port = free_port()
        argv = [
            str(self.programs["kube-scheduler"]),
            f"--kubeconfig={self.write_kubeconfig('scheduler.kubeconfig', 'system:kube-scheduler')}",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'pki'}",
        ]
        return Component("kube-scheduler", argv, lambda: answers(f"https://{LOOPBACK}:{port}/healthz", TRUSTING))


TRUSTING = ssl._create_unverified_context()  # noqa: S323 - for loopback health checks of self-signed components


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a GET is answered with 200; a proxy in the environment is never asked."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    connection = (
        http.client.HTTPSConnection(host, timeout=2, context=context)
        if scheme == "https"
        else http.client.HTTPConnection(host, timeout=2)
    )
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def claim_port(port: int) -> int:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise ClusterError(
                f"port {port} on {LOOPBACK} is taken ({error.strerror}); choose another with --port"
            ) from error
    return port


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
