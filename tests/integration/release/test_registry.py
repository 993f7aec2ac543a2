"""Pushes to a real registry: what arrives there, and the sentences about one that refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clotho_dev.cluster import binaries, buildah
from clotho_dev.cluster.chart import IMAGE_KEYS
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.process import Processes
from clotho_dev.cluster.registry import Registry
from clotho_dev.ports import free_port
from clotho_dev.release import chart, destination, prepare
from clotho_dev.release.builders import Buildah

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("buildah") is None, reason="pushing needs buildah and root"
)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    running = Processes(tmp_path / "logs")
    yield running
    running.stop()


@pytest.fixture
def tiny(registry: Registry) -> Iterator[str]:
    """An empty image with a reference in the registry."""
    reference = f"{registry.host}/team/tiny:1"
    container = buildah.buildah("from", "scratch").strip()
    buildah.buildah("commit", "--quiet", "--rm", container, reference)
    yield reference
    buildah.buildah("rmi", reference)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry.at_free_port(tmp_path)


def test_pushed_image_is_in_the_registry_under_its_digest(registry: Registry, processes: Processes, tiny: str) -> None:
    registry.start(processes)
    destination.check(destination.parse(f"{registry.host}/team"))
    digest = Buildah().push(tiny, plain_http=True)
    request = urllib.request.Request(
        f"http://{registry.host}/v2/team/tiny/manifests/{digest}",
        headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310 - our own registry
        assert json.load(response)["mediaType"] == "application/vnd.oci.image.manifest.v1+json"


def test_registry_without_our_credentials_is_explained(registry: Registry, processes: Processes, tiny: str) -> None:
    guarded = replace(
        registry, password_file=registry.folder / "passwords"
    )  # made at the start, with a random password
    guarded.start(processes)
    destination.check(destination.parse(f"{registry.host}/team"))  # it asks for credentials: it is one
    with pytest.raises(
        ClusterError, match=f"does not accept the credentials .* log in with `buildah login {registry.host}`"
    ):
        Buildah().push(tiny, plain_http=True)


def test_read_only_registry_is_explained(registry: Registry, processes: Processes, tiny: str) -> None:
    replace(registry, read_only=True).start(processes)
    with pytest.raises(ClusterError, match=r"accepts no pushes \(it is read-only\)"):
        Buildah().push(tiny, plain_http=True)


def test_registry_that_is_not_there_is_explained_before_anything_is_built() -> None:
    with pytest.raises(ClusterError, match=r"no registry listens at 127.0.0.1:\d+ \(connection refused\)"):
        destination.check(destination.parse(f"127.0.0.1:{free_port()}/team"))


def test_packed_chart_is_installable_from_the_registry(
    registry: Registry, processes: Processes, tmp_path: Path
) -> None:
    registry.start(processes)
    helm = binaries.find(["helm"])["helm"]
    digests = dict.fromkeys(IMAGE_KEYS.values(), f"sha256:{'0' * 64}")
    package = chart.pack(helm, tmp_path / "dist", prepare.Pushed(f"{registry.host}/team", digests))
    reference = chart.push(helm, package, destination.parse(f"{registry.host}/team"))
    assert reference.startswith(f"{registry.host}/team/charts/clotho@sha256:")
    argv = [helm, "template", "clotho", f"oci://{reference}", "--plain-http", "--show-only=templates/deployment.yaml"]
    rendered = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert f"image: {registry.host}/team/operator@sha256:{'0' * 64}" in rendered.replace('"', "")
