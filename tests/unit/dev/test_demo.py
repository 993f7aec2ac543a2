"""What `make demo` prints around its work."""

import shutil
from pathlib import Path

import pytest

from clotho_dev import demo
from clotho_dev.cluster import console, disk
from clotho_dev.cluster.failure import ClusterError


def test_programs_that_are_not_on_the_path_are_added_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = {"kubectl": Path("/cache/bin/kubectl"), "helm": Path("/cache/bin/helm")}
    monkeypatch.setattr(demo.binaries, "find", lambda _: paths)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo.path_hint() == "  export PATH=/cache/bin:$PATH      # kubectl and helm\n"
    (tmp_path / "kubectl").touch(mode=0o755)
    assert demo.path_hint().endswith("# helm\n")
    (tmp_path / "helm").touch(mode=0o755)
    assert demo.path_hint() == ""


def test_too_little_room_on_the_disk_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    asked: list[Path] = []

    def eleven_gibibytes(folder: Path) -> object:
        asked.append(folder)
        return usage._replace(free=11 * 1024**3)

    monkeypatch.setattr(disk.shutil, "disk_usage", eleven_gibibytes)
    disk.require_room(tmp_path / "not" / "yet", "the first demo", 11)
    with pytest.raises(ClusterError, match=r"/yet has 11.0 GiB free and the first demo needs 24 GiB.*XDG_CACHE_HOME"):
        disk.require_room(tmp_path / "not" / "yet", "the first demo", 24)
    assert asked == [tmp_path, tmp_path]


def test_the_first_run_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    overall = console.Overall()
    assert str(overall) == ""
    overall.begin(15)
    now = 6 * 60.0
    assert str(overall) == "[6 of about 15 min] "
    now = 19.5 * 60.0
    assert str(overall) == "[20 of about 20 min] "


@pytest.mark.parametrize(
    ("cluster", "first", "exports"),
    [
        ("embedded", "  make cluster-down", True),
        ("kind", "  CLUSTER=kind make cluster-down", True),
        ("current", "  kubectl delete namespace clotho-demo", False),
    ],
)
def test_cleaning_up_fits_the_cluster(cluster: str, first: str, exports: bool) -> None:
    assert demo.clean_up_hint(cluster).splitlines()[0] == first
    assert bool(demo.kubeconfig_hint(cluster, Path("kubeconfig"))) is exports
