"""Addresses of registries, and the sentences about those that refuse."""

import socket
import ssl

import pytest

from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release import destination


@pytest.mark.parametrize(
    ("address", "plain_http"),
    [
        ("ghcr.io/my-team", False),
        ("registry.example:5000", False),
        ("registry.example:5000/a/b_c", False),
        ("localhost:5000/clotho", True),
        ("127.0.0.1:5000", True),
        ("[::1]:5000/clotho", True),
        ("10.0.0.5:5000", False),
    ],
)
def test_only_registries_on_loopback_speak_plain_http(address: str, plain_http: bool) -> None:
    assert destination.parse(address) == destination.Destination(address, plain_http)
    assert destination.parse(address, plain_http=True).plain_http


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("", "REGISTRY is missing: name the registry and path to push to, as in REGISTRY=ghcr.io/my-team"),
        ("https://ghcr.io/a", "REGISTRY=https://ghcr.io/a: leave out https://, as in ghcr.io/my-team"),
        ("ghcr.io/My-Team", "REGISTRY=ghcr.io/My-Team is no host with a path in lower-case letters"),
        ("ghcr.io/a/", "REGISTRY=ghcr.io/a/ is no host with a path"),
        ("ghcr.io/a:1.0", "REGISTRY=ghcr.io/a:1.0 is no host with a path"),
        ("ghcr.io/a b", "REGISTRY=ghcr.io/a b is no host with a path"),
    ],
)
def test_address_that_is_none_is_refused(address: str, complaint: str) -> None:
    with pytest.raises(ClusterError) as refused:
        destination.parse(address)
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize("tag", ["", ".hidden", "a b", "a/b", "x" * 129])
def test_tag_that_is_none_is_refused(tag: str) -> None:
    with pytest.raises(ClusterError, match="is no image tag"):
        destination.require_tag(tag)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (ConnectionRefusedError(), "no registry listens at r:5 (connection refused): start it, or correct REGISTRY"),
        (socket.gaierror(), "the name r:5 of the registry does not resolve: correct REGISTRY, or check the network"),
        (TimeoutError(), "the registry r:5 did not answer in 10 s: check the address and the network"),
        (
            ssl.SSLError(),
            "the registry r:5 has no TLS: push with PLAIN_HTTP=1, and allow it on the cluster's nodes too",
        ),
        (OSError("odd"), "the registry r:5 does not answer: odd"),
    ],
)
def test_registry_that_does_not_answer_is_explained(reason: Exception, sentence: str) -> None:
    assert destination.unreachable("r:5", reason) == sentence


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (
            "writing blob: initiating layer upload: unauthorized: authentication required",
            "r:5 does not accept the credentials for r:5/team/operator: log in with `podman login r:5`",
        ),
        (
            "requested access to the resource is denied",
            "r:5 does not let this account push to r:5/team/operator: request write access, or choose another path",
        ),
        ("unsupported: The operation", "r:5 accepts no pushes (it is read-only): choose another REGISTRY"),
        (
            "http: server gave HTTP response to HTTPS client",
            "the registry r:5 has no TLS: push with PLAIN_HTTP=1, and allow it on the cluster's nodes too",
        ),
        ("x509: unknown authority", "the certificate of r:5 is not trusted: add its CA to this machine's"),
        ("first\nlast words\n", "r:5/team/operator could not be pushed: last words"),
        ("", "r:5/team/operator could not be pushed: no reason was given"),
    ],
)
def test_refused_push_is_explained(output: str, sentence: str) -> None:
    assert destination.refusal("r:5/team/operator:1.0", "podman", output) == sentence


def test_docker_takes_registries_without_tls_from_the_settings_of_its_daemon() -> None:
    sentence = "the registry r:5 has no TLS: docker's daemon takes it if its insecure-registries name it"
    assert destination.refusal("r:5/a:1", "docker", "http: server gave HTTP response to HTTPS client") == sentence
