"""Where the API server is and who we are: from a kubeconfig, or from the pod's service account."""

import base64
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_LIFETIME_SECONDS = 60.0  # projected tokens are rotated by the kubelet long before they expire
EXEC_TIMEOUT_SECONDS = 60.0


class CredentialsError(Exception):
    """No usable credentials; the message says which file is wrong and what to do."""


class Credentials:
    """A server address, a TLS context and a bearer token that is read again from its source when it grows old."""

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext | None,
        read_token: Callable[[], str | None],
        namespace: str = "default",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = server.rstrip("/")
        self.tls = tls
        self.namespace = namespace
        self._read_token = read_token
        self._clock = clock
        self._token: str | None = None
        self._read_at: float | None = None

    def token(self) -> str | None:
        if self._read_at is None or self._clock() - self._read_at >= TOKEN_LIFETIME_SECONDS:
            self._token = self._read_token()
            self._read_at = self._clock()
        return self._token

    def forget_token(self) -> None:
        """The server refused the token: read it again before the next request."""
        self._read_at = None

    def headers(self) -> dict[str, str]:
        token = self.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


def load(kubeconfig: Path | None = None) -> Credentials:
    """The kubeconfig that was named, else the pod's service account, else $KUBECONFIG, else ~/.kube/config."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig)
    if "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    return from_kubeconfig(Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config"))


def load_as_kubectl(kubeconfig: Path | None, context: str) -> Credentials:
    """For people: the kubeconfig that was named, else $KUBECONFIG, else ~/.kube/config, else the pod's own account."""
    home = Path.home() / ".kube" / "config"
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig, context)
    if listed := [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]:
        return _from_first(listed, context)
    if not home.exists() and "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    return from_kubeconfig(home, context)


def _from_first(paths: list[Path], context: str) -> Credentials:
    """Of several files, the first that has the context; unlike kubectl, entries of two files are not mixed."""
    for path in paths[:-1]:
        try:
            return from_kubeconfig(path, context)
        except CredentialsError:
            continue
    return from_kubeconfig(paths[-1], context)


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Credentials:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"[{host}]" if ":" in host else host
    namespace = folder / "namespace"
    return Credentials(
        server=f"https://{address}:{port}",
        tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        read_token=lambda: _read(folder / "token").strip(),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


class _Lenient(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Kubeconfigs carry extensions of every tool; unknown fields are not ours to judge."""


class _Cluster(_Lenient, frozen=True):
    server: Annotated[str, Meta(pattern="^https?://")]
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False


class _Variable(_Lenient, frozen=True):
    name: str
    value: str


class _Exec(Struct, frozen=True, kw_only=True, rename="camel"):
    command: str
    api_version: str
    args: tuple[str, ...] | None = ()
    env: tuple[_Variable, ...] | None = ()


class _User(_Lenient, frozen=True):
    token: str | None = None
    token_file: str | None = field(name="tokenFile", default=None)
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: _Exec | None = None


class _Context(_Lenient, frozen=True):
    cluster: str
    user: str
    namespace: str | None = None


class _NamedCluster(_Lenient, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(_Lenient, frozen=True):
    name: str
    user: _User


class _NamedContext(_Lenient, frozen=True):
    name: str
    context: _Context


class _Kubeconfig(_Lenient, frozen=True):
    current_context: str
    clusters: tuple[_NamedCluster, ...]
    users: tuple[_NamedUser, ...]
    contexts: tuple[_NamedContext, ...]


def from_kubeconfig(path: Path, chosen_context: str = "") -> Credentials:
    """The context that was asked for, else the file's current one."""
    try:
        config = msgspec.yaml.decode(_read(path), type=_Kubeconfig)
    except msgspec.MsgspecError as error:
        raise CredentialsError(f"kubeconfig {path}: {error}") from error
    contexts = {c.name: c.context for c in config.contexts}
    name = chosen_context or config.current_context
    context = contexts.get(name)
    if context is None:
        known = ", ".join(sorted(contexts)) or "none"
        title = "context" if chosen_context else "current-context"
        raise CredentialsError(f"kubeconfig {path}: {title} {name!r} is not one of: {known}")
    cluster = next((c.cluster for c in config.clusters if c.name == context.cluster), None)
    user = next((u.user for u in config.users if u.name == context.user), None)
    if cluster is None or user is None:
        raise CredentialsError(
            f"kubeconfig {path}: context {name!r} names cluster {context.cluster!r} and user "
            f"{context.user!r}; both must be in the file"
        )
    return Credentials(
        server=cluster.server,
        tls=_tls(cluster, user, path.parent) if cluster.server.startswith("https") else None,
        read_token=lambda: _token(user, path.parent),
        namespace=context.namespace or "default",
    )


def _tls(cluster: _Cluster, user: _User, folder: Path) -> ssl.SSLContext:
    if cluster.insecure_skip_tls_verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif cluster.certificate_authority_data:
        context = ssl.create_default_context(cadata=base64.b64decode(cluster.certificate_authority_data).decode())
    else:
        authority = cluster.certificate_authority
        context = ssl.create_default_context(cafile=str(folder / authority) if authority else None)
    if user.client_certificate_data and user.client_key_data:
        with tempfile.TemporaryDirectory() as private:  # ssl reads client certificates from files only
            certificate, key = Path(private) / "client.crt", Path(private) / "client.key"
            certificate.write_bytes(base64.b64decode(user.client_certificate_data))
            key.write_bytes(base64.b64decode(user.client_key_data))
            context.load_cert_chain(certificate, key)
    elif user.client_certificate and user.client_key:
        context.load_cert_chain(folder / user.client_certificate, folder / user.client_key)
    return context


def _token(user: _User, folder: Path) -> str | None:
    if user.token:
        return user.token
    if user.token_file:
        return _read(folder / user.token_file).strip()
    return _exec_token(user.exec) if user.exec else None


class _ExecStatus(Struct, frozen=True):
    token: str | None = None


class _ExecCredential(Struct, frozen=True):
    status: _ExecStatus


def _exec_token(plugin: _Exec) -> str | None:
    """Ask a credential plugin, as kubectl does for managed clusters."""
    information = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {
        **os.environ,
        **{variable.name: variable.value for variable in plugin.env or ()},
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(information).decode(),
    }
    try:
        done = subprocess.run(
            [plugin.command, *(plugin.args or ())],
            env=environment,
            capture_output=True,
            timeout=EXEC_TIMEOUT_SECONDS,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=_ExecCredential).status.token
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise CredentialsError(f"credential plugin {plugin.command}: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise CredentialsError(
            f"cannot read {path}: {error.strerror}; name a kubeconfig with --kubeconfig or $KUBECONFIG"
        ) from error
