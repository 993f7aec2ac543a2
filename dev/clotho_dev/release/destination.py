"""The registry that images are pushed to: its address, whether it answers, and what its refusals mean."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass

from clotho_dev.cluster.failure import ClusterError

ANSWER_SECONDS = 10.0
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
_PATH = r"(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Destination:
    """`address` is what stands before the image's name: host[:port][/path]."""

    address: str
    plain_http: bool

    @property
    def host(self) -> str:
        return self.address.partition("/")[0]

    def reference(self, image: str, tag: str) -> str:
        return f"{self.address}/{image}:{tag}"


def parse(address: str, *, plain_http: bool = False) -> Destination:
    """Registries on the loopback interface speak plain HTTP; others only where it is asked for."""
    if not address:
        raise ClusterError("REGISTRY is missing: name the registry and path to push to, as in REGISTRY=ghcr.io/my-team")
    if "://" in address:
        raise ClusterError(f"REGISTRY={address}: leave out {address.partition('://')[0]}://, as in ghcr.io/my-team")
    if not re.fullmatch(_HOST + _PATH, address):
        raise ClusterError(f"REGISTRY={address} is no host with a path in lower-case letters, such as ghcr.io/my-team")
    host = address.partition("/")[0]
    return Destination(address, plain_http or is_loopback(host))


def require_tag(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        raise ClusterError(
            f"TAG={tag} is no image tag: letters, digits, `_`, `.` and `-`, at most 128, as in TAG=0.1.0"
        )
    return tag


def is_loopback(host: str) -> bool:
    name = re.sub(r":[0-9]+$", "", host).strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check(destination: Destination) -> None:
    """Before minutes are spent on building: does a registry answer there?"""
    host = destination.host
    url = f"{'http' if destination.plain_http else 'https'}://{host}/v2/"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS):  # noqa: S310 - the user's own registry
            return
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):  # it asks for credentials, which the push has
            return
        raise ClusterError(f"{host} is no image registry, or a broken one: it answers {error.code} to /v2/") from error
    except (OSError, ValueError) as error:
        raise ClusterError(unreachable(host, getattr(error, "reason", error))) from error


def unreachable(host: str, reason: object) -> str:
    """Why no registry answers at this host, and what to do."""
    if isinstance(reason, ConnectionRefusedError):
        return f"no registry listens at {host} (connection refused): start it, or correct REGISTRY"
    if isinstance(reason, socket.gaierror):
        return f"the name {host} of the registry does not resolve: correct REGISTRY, or check the network"
    if isinstance(reason, TimeoutError):
        return f"the registry {host} did not answer in {ANSWER_SECONDS:.0f} s: check the address and the network"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not trusted ({reason.verify_message}): add its CA to this machine's"
    if isinstance(reason, ssl.SSLError):
        return f"the registry {host} has no TLS: push with PLAIN_HTTP=1, and allow it on the cluster's nodes too"
    return f"the registry {host} does not answer: {reason}"


def refusal(reference: str, program: str, output: str) -> str:
    """What the end of a failed push means. The most specific words come first: a 401 is often also `denied`."""
    repository = reference.rpartition(":")[0]
    host = repository.partition("/")[0]
    words = output.lower()
    if "unauthorized" in words or "authentication required" in words or "no basic auth" in words:
        return f"{host} does not accept the credentials for {repository}: log in with `{program} login {host}`"
    if "denied" in words or "403" in words:
        return f"{host} does not let this account push to {repository}: request write access, or choose another path"
    if "unsupported" in words or "405" in words or "read-only" in words:
        return f"{host} accepts no pushes (it is read-only): choose another REGISTRY"
    if "server gave http response to https client" in words and program == "docker":
        return f"the registry {host} has no TLS: docker's daemon takes it if its insecure-registries name it"
    if "server gave http response to https client" in words:
        return f"the registry {host} has no TLS: push with PLAIN_HTTP=1, and allow it on the cluster's nodes too"
    if "x509" in words or "certificate" in words:
        return f"the certificate of {host} is not trusted: add its CA to this machine's"
    if "no space left" in words or "507" in words:
        return f"the disk of the registry {host} or of this machine is full: {_last_line(output)}"
    if "connection refused" in words or "no such host" in words or "timeout" in words:
        return f"the registry {host} stopped answering while {repository} was pushed: {_last_line(output)}"
    return f"{repository} could not be pushed: {_last_line(output)}"


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"
