"""Official release binaries, each checked against its published SHA-256 before it enters the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from clotho_dev.cluster.console import say, step

KUBERNETES_RELEASES = "https://dl.k8s.io"
REACH_SECONDS = 3.0


@dataclass(frozen=True)
class Source:
    url: str
    checksum_url: str


def releases() -> str:
    """A mirror of the Kubernetes releases can take the place of the official host."""
    return os.environ.get("CLOTHO_KUBERNETES_RELEASES", KUBERNETES_RELEASES).rstrip("/")


def kubernetes(name: str, version: str, system: str, machine: str) -> Source:
    url = f"{releases()}/v{version}/bin/{system}/{machine}/{name}"
    return Source(url, f"{url}.sha256")


def is_reachable() -> bool:
    try:
        with urllib.request.urlopen(f"{releases()}/", timeout=REACH_SECONDS):  # noqa: S310 - https, or the user's own mirror
            return True
    except urllib.error.HTTPError:
        return True  # it answered
    except OSError:
        return False


def fetch(name: str, source: Source | None, folder: Path) -> bool:
    """False when there is nothing to download or it did not work; the caller then builds instead."""
    if source is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    path = Path(partial)
    try:
        with step(f"Downloading {name}") as progress, os.fdopen(descriptor, "wb") as output:
            expected = _read(source.checksum_url).decode().split()[0]
            digest = hashlib.sha256()
            with urllib.request.urlopen(source.url, timeout=60) as response:  # noqa: S310
                while chunk := response.read(1 << 20):
                    digest.update(chunk)
                    output.write(chunk)
                    progress.update(f"{output.tell() >> 20} MiB")
        if digest.hexdigest() != expected:
            say(f"{source.url}: its SHA-256 is {digest.hexdigest()}, not {expected}; building from source instead")
            return False
        path.chmod(0o755)
        shutil.move(path, folder / name)
        return True
    except (OSError, IndexError, UnicodeDecodeError) as error:
        say(f"{source.url} could not be downloaded ({error}); building from source instead")
        return False
    finally:
        path.unlink(missing_ok=True)


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310
        content: bytes = response.read(1 << 16)
        return content
