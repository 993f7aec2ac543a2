"""Discovered files become Environments that the operator accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from clotho.api.environment import Environment, parse
from clotho.cli.__main__ import main
from clotho.cli.failure import Exit
from clotho.cli.files.discovery import discover
from clotho.cli.files.manifests import CONFIG_MAP_LIMIT, NO_ATROPOS_IMAGE, environment_manifests, object_name

ATROPOS = "registry/environment-atropos:1"
KIT = "from clotho_environment import Environment\nimport words\n\n\nclass Echo(Environment):\n    'Say it.'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "envs" / "math").mkdir(parents=True)
    (tmp_path / "envs" / "echo.py").write_text(KIT)
    (tmp_path / "envs" / "words.py").write_text("WORDS = ['red']\n")
    (tmp_path / "envs" / "math" / "gsm8k.py").write_text("class G(BaseEnv): name = 'GSM 8k!'\n")
    return tmp_path / "envs"


def made(folder: Path, **options: Any) -> list[dict[str, Any]]:
    given = {"image": "", "atropos_image": ATROPOS, "image_path": "", "as_config_map": False, **options}
    return environment_manifests(discover([folder]), [folder], **given)


def test_files_in_an_image_get_a_manifest_with_that_image(folder: Path) -> None:
    echo, gsm8k = made(folder, image="registry/envs:1", image_path="/app")
    assert echo["spec"] == {"image": "registry/envs:1", "entry": "/app/echo.py:Echo", "description": "Say it."}
    assert gsm8k["metadata"]["name"] == "gsm-8k"
    assert gsm8k["spec"]["entry"] == "atropos:/app/math/gsm8k.py"


def test_files_go_into_a_config_map_with_the_modules_they_import(folder: Path) -> None:
    files, echo, _, gsm8k = made(folder, as_config_map=True)
    assert files["data"] == {"echo.py": KIT, "words.py": "WORDS = ['red']\n"}
    assert echo["spec"]["configMapName"] == files["metadata"]["name"] == "echo"
    assert echo["spec"]["entry"] == "/environment/echo.py:Echo"
    assert gsm8k["spec"]["entry"] == "atropos:/environment/gsm8k.py"


def test_atropos_files_run_on_the_image_with_its_library(folder: Path) -> None:
    images = {
        each["metadata"]["name"]: each["spec"].get("image")
        for each in made(folder, as_config_map=True)
        if "spec" in each
    }
    assert images == {"gsm-8k": ATROPOS, "echo": None}, "None: the operator's own"


def test_atropos_files_without_an_image_are_a_problem_and_the_others_get_their_manifests(folder: Path) -> None:
    found = discover([folder])
    manifests = environment_manifests(found, [folder], image="", atropos_image="", image_path="", as_config_map=True)
    assert [each["metadata"]["name"] for each in manifests] == ["echo", "echo"]
    assert [(each.path.name, each.what) for each in found.problems] == [("gsm8k.py", NO_ATROPOS_IMAGE)]


def test_manifests_are_accepted_by_the_operator(folder: Path) -> None:
    for manifest in made(folder, as_config_map=True):
        if manifest["kind"] == "Environment":
            assert isinstance(parse(manifest), Environment)


def test_files_too_large_for_a_config_map_are_a_problem(folder: Path) -> None:
    (folder / "words.py").write_text("#" + "x" * CONFIG_MAP_LIMIT)
    found = discover([folder])
    manifests = environment_manifests(
        found, [folder], image="", atropos_image=ATROPOS, image_path="", as_config_map=True
    )
    assert [each["metadata"]["name"] for each in manifests] == ["gsm-8k", "gsm-8k"]
    assert "--image" in found.problems[0].what


def test_equal_names_are_numbered(tmp_path: Path) -> None:
    for class_name in ("A", "B", "b"):
        (tmp_path / f"{class_name * 2}.py").write_text(f"class {class_name}(BaseEnv): name = 'x'")
    assert [each["metadata"]["name"] for each in made(tmp_path, image="i")] == ["x", "x-b", "x-2"]


TWO = "class Sums(BaseEnv): name = 'sums'\n\n\nclass Products(BaseEnv): name = 'products'\n"


@pytest.mark.parametrize(
    ("ending", "run", "idle"),
    [
        ("", "Products", "Sums"),
        ("\nif __name__ == '__main__':\n    Products.cli()\n", "Products", "Sums"),
        ("\nif __name__ == '__main__':\n    Sums.cli()\n", "Sums", "Products"),
        ("\nOther.cli()\n", "Products", "Sums"),
    ],
)
def test_of_several_classes_in_a_file_only_the_one_that_runs_gets_a_manifest(
    tmp_path: Path, ending: str, run: str, idle: str
) -> None:
    (tmp_path / "two.py").write_text(TWO + ending)
    found = discover([tmp_path])
    assert [each.class_name for each in found.environments] == ["Sums", "Products"], "both are listed"
    (manifest,) = environment_manifests(
        found, [tmp_path], image="i", atropos_image="", image_path="", as_config_map=False
    )
    assert manifest["metadata"]["name"] == run.lower()
    assert [each.what for each in found.problems] == [
        f"several BaseEnv classes in one file: runs use {run}, never {idle}"
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [("GSM 8k!", "gsm-8k"), ("8k", "env-8k"), ("_x_", "x"), ("ä", "env"), ("a" * 80, "a" * 63)],
)
def test_object_names_are_valid_for_kubernetes(text: str, name: str) -> None:
    assert object_name(text) == name


def test_manifests_are_yaml_that_means_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "discover", str(folder), "--config-map", "--image", "i", "--write", "-"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == made(folder, as_config_map=True, image="i")


def test_without_a_cluster_a_folder_of_atropos_files_needs_an_image(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["env", "discover", str(folder / "math"), "--config-map", "--kubeconfig", str(tmp_path / "none")]
    assert main(words) == Exit.NOT_FOUND
    assert "pass --image" in capsys.readouterr().err


def test_discovery_as_json_has_the_fields_of_a_listing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.py").write_text("(")
    assert main(["env", "discover", str(folder), "-o", "json"]) == 0
    message = capsys.readouterr()
    answer = msgspec.json.decode(message.out)
    assert answer["count"] == 2
    assert set(answer["environments"][0]) == {"name", "class_name", "file_path", "description", "config_class"}
    assert answer["warnings"][0]["file_path"].endswith("bad.py")
    assert "warning:" in message.err


def test_an_image_of_ones_own_can_run_the_files_of_a_config_map(folder: Path) -> None:
    _, echo, *_ = made(folder, as_config_map=True, image="registry/atropos:1")
    assert (echo["spec"]["image"], echo["spec"]["configMapName"]) == ("registry/atropos:1", "echo")
