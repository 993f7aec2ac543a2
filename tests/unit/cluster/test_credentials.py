"""Credentials: from a kubeconfig or the service account, read again when they grow old, wrong ones named."""

import base64
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import TOKEN_LIFETIME_SECONDS, Credentials, CredentialsError
from clotho.cluster.kubeconfig import from_kubeconfig
from clotho.cluster.login import load_as_kubectl
from clotho.cluster.outcomes import NoCredentials, Transient


def write(folder: Path, user: dict[str, Any] | None = None, **changes: Any) -> Path:
    document = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "http://10.0.0.1:8080"}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        **changes,
    }
    path = folder / "config"
    path.write_bytes(msgspec.yaml.encode(document))
    return path


def test_a_token_in_the_file(tmp_path: Path) -> None:
    found = from_kubeconfig(write(tmp_path, {"token": "secret", "some-extension": {"x": 1}}))
    assert (found.server, found.namespace, found.headers()) == (
        "http://10.0.0.1:8080",
        "team",
        {"Authorization": "Bearer secret"},
    )


def test_a_token_file_is_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from file\n")
    assert from_kubeconfig(write(tmp_path, {"tokenFile": "token"})).token() == "from file"


def test_a_credential_plugin_is_executed(tmp_path: Path) -> None:
    script = 'import os, json; print(json.dumps({"status": {"token": os.environ["WHO"]}}))'
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", script],
        "env": [{"name": "WHO", "value": "me"}],
    }
    assert from_kubeconfig(write(tmp_path, {"exec": plugin})).token() == "me"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"current-context": "there"}, "current-context 'there' is not one of: here"),
        ({"clusters": []}, "names cluster 'c' and user 'u'; both must be in the file"),
        ({"clusters": [{"name": "c", "cluster": {"server": "localhost"}}]}, "clusters"),
        ({"users": "none"}, "users"),
    ],
)
def test_a_wrong_kubeconfig_is_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CredentialsError, match=complaint):
        from_kubeconfig(write(tmp_path, None, **changes))


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="nowhere: No such file"):
        from_kubeconfig(tmp_path / "nowhere")


def test_a_failing_plugin_is_named_without_its_output(tmp_path: Path) -> None:
    plugin = {"apiVersion": "v1", "command": "/nonexistent/plugin"}
    with pytest.raises(CredentialsError, match="credential plugin /nonexistent/plugin"):
        from_kubeconfig(write(tmp_path, {"exec": plugin})).token()


def test_a_token_is_read_again_when_old_or_refused() -> None:
    now, tokens = [0.0], iter(["first", "second", "third"])
    credentials = Credentials("http://x", None, lambda: next(tokens), clock=lambda: now[0])
    assert (credentials.token(), credentials.token()) == ("first", "first")
    now[0] = TOKEN_LIFETIME_SECONDS
    assert credentials.token() == "second"
    credentials.forget_token()
    assert credentials.token() == "third"


def entry(name: str, server: str, token: str) -> dict[str, Any]:
    return {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }


def test_several_kubeconfigs_are_merged_and_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [
        {**entry("a", "http://first", "1"), "contexts": [{"name": "mixed", "context": {"cluster": "a", "user": "b"}}]},
        {**entry("a", "http://second", "2"), "current-context": "mixed"},
        {**entry("b", "http://third", "3"), "current-context": "b"},
    ]
    for number, document in enumerate(documents):
        (tmp_path / str(number)).write_bytes(msgspec.yaml.encode(document))
    names = [str(tmp_path / name) for name in ("0", "missing", "1", "2")]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(names))
    found = load_as_kubectl(None, "")
    assert (found.server, found.token()) == ("http://first", "3")
    assert load_as_kubectl(None, "b").server == "http://third"
    with pytest.raises(CredentialsError, match="context 'c' is not one of: a, b, mixed"):
        load_as_kubectl(None, "c")


def test_a_proxy_of_the_cluster(tmp_path: Path) -> None:
    clusters = [{"name": "c", "cluster": {"server": "http://x", "proxy-url": "http://proxy:3128"}}]
    assert from_kubeconfig(write(tmp_path, clusters=clusters)).proxy == "http://proxy:3128"


def oidc(expires: float) -> dict[str, Any]:
    payload = base64.urlsafe_b64encode(msgspec.json.encode({"exp": expires})).decode().rstrip("=")
    return {"auth-provider": {"name": "oidc", "config": {"id-token": f"h.{payload}.s"}}}


def test_oidc_token_of_kubectl(tmp_path: Path) -> None:
    assert str(from_kubeconfig(write(tmp_path, oidc(time.time() + 900))).token()).startswith("h.")
    with pytest.raises(CredentialsError, match="id-token has expired; any kubectl command renews it"):
        from_kubeconfig(write(tmp_path, oidc(time.time() - 1))).token()
    with pytest.raises(CredentialsError, match="auth-provider gcp is not supported; use an exec plugin"):
        from_kubeconfig(write(tmp_path, {"auth-provider": {"name": "gcp"}})).token()


def certificates(folder: Path, *names: str) -> dict[str, tuple[bytes, bytes]]:
    """An authority, and for each name a certificate that it has signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    made: dict[str, tuple[bytes, bytes]] = {}
    issuer_key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    for name in ("authority", *names):
        key = issuer_key if name == "authority" else ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        certificate = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=name == "authority", path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(issuer_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        made[name] = (certificate.public_bytes(pem), private)
        (folder / f"{name}.crt").write_bytes(made[name][0])
        (folder / f"{name}.key").write_bytes(private)
    return made


@asynccontextmanager
async def tls_server(folder: Path) -> AsyncIterator[str]:
    """Asks for a client certificate, and answers with its common name."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "authority.crt"))
    context.load_cert_chain(folder / "api.example.crt", folder / "api.example.key")
    context.verify_mode = ssl.CERT_REQUIRED

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        return web.json_response({"client": peer["subject"][0][0][1]})

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_server_name_and_client_certificate_of_a_plugin(tmp_path: Path) -> None:
    """The server is reached by an address that is not in its certificate; the plugin gives a pair and no token."""
    made = certificates(tmp_path, "api.example", "plugin")
    status = {"clientCertificateData": made["plugin"][0].decode(), "clientKeyData": made["plugin"][1].decode()}
    (tmp_path / "answer").write_bytes(msgspec.json.encode({"status": status}))
    plugin = {"apiVersion": "v1", "command": "cat", "args": [str(tmp_path / "answer")]}
    async with tls_server(tmp_path) as server:
        cluster = {"server": server, "certificate-authority": "authority.crt", "tls-server-name": "api.example"}
        path = write(tmp_path, {"exec": plugin}, clusters=[{"name": "c", "cluster": cluster}])
        async with ApiClient(from_kubeconfig(path)) as client:
            assert await client.get("/", dict[str, str]) == {"client": "plugin"}
        del cluster["tls-server-name"]
        path = write(tmp_path, {"exec": plugin}, clusters=[{"name": "c", "cluster": cluster}])
        async with ApiClient(from_kubeconfig(path)) as client:
            with pytest.raises(Transient, match="certificate"):
                await client.get("/", dict[str, str])


async def test_plugin_that_fails_later_is_an_error_of_the_request(tmp_path: Path) -> None:
    plugin = {"apiVersion": "v1", "command": "/nonexistent/plugin", "installHint": "Install it."}
    async with ApiClient(from_kubeconfig(write(tmp_path, {"exec": plugin}))) as client:
        with pytest.raises(NoCredentials, match=r"credential plugin /nonexistent/plugin: .*; Install it\."):
            await client.get("/", dict[str, str])
