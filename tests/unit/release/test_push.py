"""What a push writes: labels, values for the chart, the table, and the bill of materials."""

import json
import os
from pathlib import Path

import pytest
import yaml

from clotho_dev.cluster import images
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release import builders, destination, push, sbom

DIGEST = "sha256:" + "ab" * 32
TO = destination.parse("ghcr.io/my-team")


def test_labels_name_source_commit_version_and_time() -> None:
    labels = push.Revision("0123abc", "2026-11-16T09:00:00+00:00").labels("0.2.0")
    assert {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items()} == {
        "source": "https://github.com/clotho-dev/clotho",
        "revision": "0123abc",
        "version": "0.2.0",
        "created": "2026-11-16T09:00:00+00:00",
    }


def test_digests_are_written_as_values_of_the_chart() -> None:
    pushed = ("operator", "api-server", "environment-atropos", "trainer-tinker")
    text = push.chart_values(TO, dict.fromkeys(pushed, DIGEST))
    digests = {"operator": DIGEST, "apiServer": DIGEST, "environmentAtropos": DIGEST}
    assert yaml.safe_load(text) == {"images": {"registry": "ghcr.io/my-team", "digests": digests}}


def test_table_has_a_reference_for_each_image() -> None:
    assert push.table(TO, {"operator": DIGEST, "api-server": DIGEST}).splitlines() == [
        "IMAGE       REFERENCE",
        f"operator    ghcr.io/my-team/operator@{DIGEST}",
        f"api-server  ghcr.io/my-team/api-server@{DIGEST}",
    ]


def test_bill_of_materials_lists_python_and_debian_packages(tmp_path: Path) -> None:
    listing = {
        "python": "3.12.15",
        "distribution": ["debian", "bookworm"],
        "packages": [["aiohttp", "3.14.0", "Apache-2.0"], ["PyYAML", "6.0.3", ""]],
        "system": [["libc6", "2.36-9+deb12u9", "amd64"]],
    }
    image = sbom.Image("operator", "ghcr.io/my-team/operator", DIGEST, "0.2.0", "2026-11-16T09:00:00+00:00")
    push.write_bill(tmp_path, image, json.dumps(listing))
    bill = json.loads((tmp_path / "operator.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"].endswith("?repository_url=ghcr.io/my-team/operator")
    assert {part["purl"] for part in bill["components"]} == {
        "pkg:generic/python@3.12.15",
        "pkg:pypi/aiohttp@3.14.0",
        "pkg:pypi/pyyaml@6.0.3",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64&distro=bookworm",
    }
    assert bill == sbom.bill_of_materials(image, json.dumps(listing)), "the same image gives the same bill"


def test_digest_of_a_docker_push_is_found() -> None:
    assert builders.digest_in(f"latest: digest: {DIGEST} size: 1234\n") == DIGEST
    with pytest.raises(ClusterError, match="without its digest"):
        builders.digest_in("pushed\n")


@pytest.mark.parametrize(("program", "trusts"), [("podman", True), ("docker", False)])
def test_build_starts_from_the_chosen_base_with_the_certificates_of_this_machine(
    program: str, trusts: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificates = tmp_path / "ca.crt"
    certificates.touch()
    monkeypatch.setattr(images, "CERTIFICATES", certificates)
    monkeypatch.setenv("BASE_IMAGE", "mirror.example/python:3.12")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / program).write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n')
    (tmp_path / program).chmod(0o755)
    builders.choose(program).build("operator", "r/operator:1", {"a": "b"})
    arguments = (tmp_path / "arguments").read_text().split()
    assert {"--build-arg=BASE=mirror.example/python:3.12", "--label=a=b", "--tag=r/operator:1"} <= set(arguments)
    assert (f"--volume={certificates}:{certificates}:ro" in arguments) == trusts


def test_unknown_or_missing_builder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="BUILDER=kaniko is unknown; choose one of buildah, podman, docker"):
        builders.choose("kaniko")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="no program can build images: install podman, docker or buildah"):
        builders.choose(None)
    (tmp_path / "podman").touch(mode=0o755)
    assert builders.choose(None).program == "podman"
