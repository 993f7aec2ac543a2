"""Kubeconfig files, several of them merged as kubectl does, and the credential plugins that they name."""

import base64
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from clotho.cluster.credentials import Credentials, CredentialsError, read_text

EXEC_TIMEOUT_SECONDS = 60.0


class _Lenient(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Every tool adds fields of its own: those that are unknown here are skipped."""


class _Cluster(_Lenient, frozen=True):
    server: Annotated[str, Meta(pattern="^https?://")]
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _Variable(_Lenient, frozen=True):
    name: str
    value: str


class _Exec(Struct, frozen=True, kw_only=True, rename="camel"):
    command: str
    api_version: str
    args: tuple[str, ...] | None = ()
    env: tuple[_Variable, ...] | None = ()
    install_hint: str = ""


class _AuthProvider(_Lenient, frozen=True):
    name: str
    config: dict[str, Any] = field(default_factory=dict)


class _User(_Lenient, frozen=True):
    token: str | None = None
    token_file: str | None = field(name="tokenFile", default=None)
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: _Exec | None = None
    auth_provider: _AuthProvider | None = None


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


class _File(_Lenient, frozen=True):
    current_context: str | None = None
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


class _Placed(Struct, frozen=True):
    """A context's cluster and user, with the folders that their relative paths start from."""

    cluster: _Cluster
    cluster_folder: Path
    user: _User
    user_folder: Path


def from_kubeconfig(paths: Path | Sequence[Path], chosen_context: str = "") -> Credentials:
    """The context that was asked for, else the current one. Of several files the first that has an entry counts."""
    files = {path: _parse(path) for path in ([paths] if isinstance(paths, Path) else paths)}
    title = "kubeconfig " + os.pathsep.join(map(str, files))
    contexts = {each.name: each.context for file in reversed(files.values()) for each in file.contexts or ()}
    current = next((file.current_context for file in files.values() if file.current_context), "")
    name = chosen_context or current
    context = contexts.get(name)
    if context is None:
        known = ", ".join(sorted(contexts)) or "none"
        what = "context" if chosen_context else "current-context"
        raise CredentialsError(f"{title}: {what} {name!r} is not one of: {known}")
    placed = _look_up(files, context)
    if placed is None:
        raise CredentialsError(
            f"{title}: context {name!r} names cluster {context.cluster!r} and user {context.user!r}; "
            "both must be in the file"
        )
    tls = _tls(placed) if placed.cluster.server.startswith("https") else None
    return Credentials(
        server=placed.cluster.server,
        tls=tls,
        read_token=lambda: _token(placed, tls),
        namespace=context.namespace or "default",
        proxy=placed.cluster.proxy_url,
    )


def _parse(path: Path) -> _File:
    try:
        file = msgspec.yaml.decode(read_text(path), type=_File)
        if file == _File():
            raise msgspec.ValidationError("it has neither clusters nor contexts")
    except msgspec.MsgspecError as error:
        raise CredentialsError(f"kubeconfig {path}: {error}") from error
    return file


def _look_up(files: dict[Path, _File], context: _Context) -> _Placed | None:
    clusters = [
        (each.cluster, path.parent)
        for path, file in files.items()
        for each in file.clusters or ()
        if each.name == context.cluster
    ]
    users = [
        (each.user, path.parent)
        for path, file in files.items()
        for each in file.users or ()
        if each.name == context.user
    ]
    return _Placed(*clusters[0], *users[0]) if clusters and users else None


class _Tls(ssl.SSLContext):
    """Expects the server to prove another name than the one it is reached by: tls-server-name."""

    server_name = ""

    def wrap_bio(self, incoming: Any, outgoing: Any, *args: Any, **options: Any) -> ssl.SSLObject:
        if self.server_name:
            options["server_hostname"] = self.server_name
        return super().wrap_bio(incoming, outgoing, *args, **options)


def _tls(placed: _Placed) -> ssl.SSLContext:
    cluster, user = placed.cluster, placed.user
    context = _Tls(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = cluster.tls_server_name or ""
    if cluster.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif cluster.certificate_authority_data:
        context.load_verify_locations(cadata=base64.b64decode(cluster.certificate_authority_data).decode())
    elif cluster.certificate_authority:
        context.load_verify_locations(cafile=placed.cluster_folder / cluster.certificate_authority)
    else:
        context.load_default_certs()
    if user.client_certificate_data and user.client_key_data:
        _present(context, base64.b64decode(user.client_certificate_data), base64.b64decode(user.client_key_data))
    elif user.client_certificate and user.client_key:
        context.load_cert_chain(placed.user_folder / user.client_certificate, placed.user_folder / user.client_key)
    return context


def _present(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Use a client certificate; ssl reads them from files only."""
    with tempfile.TemporaryDirectory() as private:
        files = Path(private) / "client.crt", Path(private) / "client.key"
        files[0].write_bytes(certificate)
        files[1].write_bytes(key)
        context.load_cert_chain(*files)


def _token(placed: _Placed, tls: ssl.SSLContext | None) -> str | None:
    user = placed.user
    if user.token:
        return user.token
    if user.token_file:
        return read_text(placed.user_folder / user.token_file).strip()
    if user.exec:
        found = _ask_plugin(user.exec)
        if found.client_certificate_data and found.client_key_data and tls is not None:
            _present(tls, found.client_certificate_data.encode(), found.client_key_data.encode())
        return found.token
    return _oidc_token(user.auth_provider) if user.auth_provider else None


class _ExecStatus(Struct, frozen=True, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _ExecCredential(Struct, frozen=True):
    status: _ExecStatus


def _ask_plugin(plugin: _Exec) -> _ExecStatus:
    """Ask a credential plugin, as kubectl does for managed clusters. Its output is never repeated: it is a secret."""
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
        return msgspec.json.decode(done.stdout, type=_ExecCredential).status
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError, RecursionError) as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint and isinstance(error, OSError) else ""
        raise CredentialsError(f"credential plugin {plugin.command}: {error}{hint}") from error


class _Claims(Struct, frozen=True):
    exp: float = 0.0


def _oidc_token(provider: _AuthProvider) -> str:
    """The ID token that kubectl keeps in the file. Renewing it is left to kubectl, which stores the new one there."""
    token = provider.config.get("id-token")
    if provider.name != "oidc" or not isinstance(token, str):
        raise CredentialsError(f"auth-provider {provider.name} is not supported; use an exec plugin")
    try:
        payload = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Claims)
    except (IndexError, ValueError, msgspec.MsgspecError):
        raise CredentialsError("auth-provider oidc: id-token is not a JSON web token") from None
    if claims.exp <= time.time():
        raise CredentialsError("auth-provider oidc: id-token has expired; any kubectl command renews it")
    return token
