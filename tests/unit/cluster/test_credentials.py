"""Credentials: from a kubeconfig or the service account, read again when they grow old, wrong ones named."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clotho.cluster.credentials import TOKEN_LIFETIME_SECONDS, Credentials, CredentialsError, from_kubeconfig


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


def test_a_credential_plugin_is_asked(tmp_path: Path) -> None:
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
