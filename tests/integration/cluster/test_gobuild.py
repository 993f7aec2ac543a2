"""The cluster's programs, built with the real compiler: several at once, each under all its names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from clotho_dev.cluster import gobuild
from clotho_dev.cluster.failure import ClusterError

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")


def program(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.go").write_text(f'package main\n\nimport "fmt"\n\nfunc main() {{ fmt.Print("{text}") }}\n')


@pytest.fixture
def module(tmp_path: Path) -> Path:
    folder = tmp_path / "module"
    for name in ("one", "two"):
        program(folder / "cmd" / name, name)
    program(folder, "top")
    (folder / "go.mod").write_text("module example.test/tools\n\ngo 1.26.0\n")
    return folder


def output(path: Path) -> str:
    return subprocess.run([path], capture_output=True, text=True, check=True).stdout


def test_several_programs_are_built_under_all_their_names(module: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    gobuild.build({"./cmd/one": ("first", "alias"), "./cmd/two": ("two",)}, folder, "1", module)
    assert {name: output(folder / name) for name in ("first", "alias", "two")} == {
        "first": "one",
        "alias": "one",
        "two": "two",
    }
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "alias", "first", "two"]


def test_the_package_of_a_module_itself_is_built(module: Path, tmp_path: Path) -> None:
    gobuild.build({".": ("registry",)}, tmp_path / "bin", "1", module)
    assert output(tmp_path / "bin" / "registry") == "top"


def test_a_failed_build_leaves_no_program(module: Path, tmp_path: Path) -> None:
    (module / "cmd" / "two" / "main.go").write_text("package main\n\nfunc main() { nothing() }\n")
    with pytest.raises(ClusterError, match="undefined: nothing"):
        gobuild.build({"./cmd/one": ("one",), "./cmd/two": ("two",)}, tmp_path / "bin", "1", module)
    assert [path.name for path in (tmp_path / "bin").iterdir()] == [".lock"]
