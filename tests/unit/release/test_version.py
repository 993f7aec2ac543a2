"""Versions, and what a new one changes in the repository."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release import prepare, version

FILES = prepare.read_files() | {
    "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n### Added\n- It.\n\n## 0.1.0\n\nThe first.\n"
}
TODAY = date(2026, 11, 16)
NEXT = version.Version((99, 0, 0))
DIGESTS = {key: f"sha256:{index:064x}" for index, key in enumerate(["operator", "apiServer", "trainer", "environment"])}
PUSHED = prepare.Pushed("registry.example/team", DIGESTS)


def test_versions_are_ordered_as_they_are_released() -> None:
    texts = ["0.1.0", "0.2.0-alpha.1", "0.2.0-beta.1", "0.2.0-rc.1", "0.2.0-rc.2", "0.2.0-rc.10", "0.2.0", "0.10.0"]
    parsed = [version.parse(text) for text in texts]
    assert parsed == sorted(parsed)
    assert [str(each) for each in parsed] == texts
    assert parsed[3].in_python == "0.2.0rc1"


@pytest.mark.parametrize("text", ["", "1", "1.0", "v1.0.0", "01.0.0", "1.0.0-nightly", "1.0.0+build", "1.0.0-rc1"])
def test_text_that_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="is no version of a release: write major"):
        version.parse(text)


def test_same_or_older_version_is_refused() -> None:
    current = prepare.current_version(FILES)
    with pytest.raises(ClusterError, match=f"VERSION={current} is not newer than {current}"):
        prepare.edited(FILES, current, TODAY, None)


def test_release_sets_every_version_at_once() -> None:
    changed = prepare.edited(FILES, NEXT, TODAY, None)
    assert set(changed) == set(prepare.FILES)
    assert tomllib.loads(changed["pyproject.toml"])["project"]["version"] == "99.0.0"
    own = [each for each in tomllib.loads(changed["uv.lock"])["package"] if each["name"] == prepare.DISTRIBUTION]
    assert [each["version"] for each in own] == ["99.0.0"]
    chart = yaml.safe_load(changed["charts/clotho/Chart.yaml"])
    assert (chart["version"], chart["appVersion"]) == ("99.0.0", "99.0.0")
    assert changed["charts/clotho/values.yaml"] == FILES["charts/clotho/values.yaml"]
    assert changed["operator/clotho/render/settings.py"].count(':99.0.0"') == 3
    assert "## Unreleased\n\n## 99.0.0 (2026-11-16)\n\n### Added" in changed["CHANGELOG.md"]


def test_release_with_digests_names_the_pushed_images() -> None:
    changed = prepare.edited(FILES, NEXT, TODAY, PUSHED)
    images = yaml.safe_load(changed["charts/clotho/values.yaml"])["images"]
    assert (images["registry"], images["digests"]) == ("registry.example/team", {**DIGESTS, "environmentAtropos": ""})
    assert '"registry.example/team/trainer:99.0.0"' in changed["operator/clotho/render/settings.py"]


def test_release_names_the_pushed_variant_as_well() -> None:
    pushed = prepare.Pushed("registry.example/team", {**DIGESTS, "environmentAtropos": "sha256:9"})
    changed = prepare.edited(FILES, NEXT, TODAY, pushed)
    assert yaml.safe_load(changed["charts/clotho/values.yaml"])["images"]["digests"] == pushed.digests


def test_release_without_a_described_change_is_refused() -> None:
    silent = {**FILES, "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n## 0.1.0\n\nThe first.\n"}
    with pytest.raises(ClusterError, match="has nothing under `## Unreleased`: describe what"):
        prepare.edited(silent, NEXT, TODAY, None)


@pytest.mark.parametrize("text", ["", "images: 3", "images: {registry: a}", "{"])
def test_file_that_no_push_wrote_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    file.write_text(text)
    with pytest.raises(ClusterError, match="is no file that `make push` has written"):
        prepare.read_pushed(file)


def test_file_without_every_digest_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    file.write_text(yaml.safe_dump({"images": {"registry": "a", "digests": {"operator": "sha256:0"}}}))
    with pytest.raises(ClusterError, match="has no digest of apiServer, environment, trainer"):
        prepare.read_pushed(file)
