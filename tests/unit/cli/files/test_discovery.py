"""Environments are found in files without running them, whatever the files are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clotho.cli.files.discovery import discover
from clotho.cli.files.python_source import SIZE_LIMIT, local_imports

ATROPOS = '''
import os, sys
os.environ["DISCOVERY_RAN_THIS"] = "yes"
sys.exit("imported")

class GsmConfig(BaseEnvConfig): pass

class GSM8kEnv(BaseEnv):
    """Grade-school sums.

    More words that no list needs."""
    name = "gsm8k"
    env_config_cls = GsmConfig
'''


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def names(folder: Path) -> list[str]:
    return [each.name for each in discover([folder]).environments]


def test_an_atropos_environment_is_read_and_never_run(tmp_path: Path) -> None:
    path = write(tmp_path, "gsm8k_server.py", ATROPOS)
    (found,) = discover([tmp_path]).environments
    assert (found.name, found.class_name, found.path) == ("gsm8k", "GSM8kEnv", path)
    assert found.description == "Grade-school sums."
    assert found.config_class == "GsmConfig"
    assert found.flavour == "atropos"
    assert "DISCOVERY_RAN_THIS" not in os.environ


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A(BaseEnv): pass", ("stem", "A", "BaseEnvConfig")),
        ("class A(envs.base.BaseEnv): name = 'x'", ("x", "A", "BaseEnvConfig")),
        ("class A(Other, BaseEnv): name = compute()", ("stem", "A", "BaseEnvConfig")),
        ("class A(BaseEnv): name: str = 'x'; env_config_cls = m.Config", ("x", "A", "m.Config")),
        ("class A(BaseEnv[int]): pass", ("stem", "A", "BaseEnvConfig")),
        ("if True:\n class A(BaseEnv): pass", ("stem", "A", "BaseEnvConfig")),
        ("from atroposlib.envs.base import BaseEnv as Base\nclass A(Base): pass", ("stem", "A", "BaseEnvConfig")),
        ("import atroposlib.envs.base as b\nclass A(b.BaseEnv): pass", ("stem", "A", "BaseEnvConfig")),
        (
            "from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv\n"
            "class A(TeacherDistillationEnv): env_config_cls = C",
            ("stem", "A", "C"),
        ),
        (
            "class Base(BaseEnv): env_config_cls = C\nclass Middle(Base): pass\nclass A(Middle): name = 'x'\nA.cli()",
            ("x", "A", "C"),
        ),
        ("class Base(BaseEnv): pass\nclass A(Base): pass", ("stem", "A", "BaseEnvConfig")),
        (
            "from clotho_environment import Environment\n"
            "class Base(Environment[C, int]):\n  def items(self): pass\n"
            "class Sum(Base):\n  async def rollout(self, item, client): pass",
            ("sum", "Sum", "C"),
        ),
        (
            "try:\n from atroposlib.envs.base import BaseEnv\nexcept ImportError:\n class BaseEnv: pass\n"
            "class A(BaseEnv): pass",
            ("stem", "A", "BaseEnvConfig"),
        ),
        ("from clotho_environment import Environment\nclass Sum(Environment[C, int]): pass", ("sum", "Sum", "C")),
        ("from clotho_environment import Environment as E\nclass Sum(E): name = 'x'", ("x", "Sum", "Config")),
        (
            "import clotho_environment as ce\nclass Sum(ce.Environment[ce.Config, str]): pass",
            ("sum", "Sum", "ce.Config"),
        ),
    ],
)
def test_every_shape_of_environment_class_is_found(tmp_path: Path, source: str, expected: tuple[str, str, str]) -> None:
    write(tmp_path, "stem.py", source)
    (found,) = discover([tmp_path]).environments
    assert (found.name, found.class_name, found.config_class) == expected


@pytest.mark.parametrize(
    "source",
    [
        "class A(BaseEnvironment): pass",
        "class A: pass",
        "from jinja2 import Environment\nclass A(Environment): pass",
        "class A(make_base()): pass",
        "class A(A): pass",
        "class A(B): pass\nclass B(A): pass",
        "from .. import A\nclass B(A): pass",
        "try:\n from atroposlib.envs import GameEnv\nexcept ImportError:\n class GameEnv: pass\nclass A(GameEnv): pass",
        "BaseEnv = 1",
        "",
    ],
)
def test_classes_that_only_resemble_environments_are_not_found(tmp_path: Path, source: str) -> None:
    write(tmp_path, "x.py", source)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        "from gsm8k_server import GSM8kEnv",
        "from .gsm8k_server import GSM8kEnv",
        "from environments.gsm8k_server import GSM8kEnv",
        "from gsm8k_server import GSM8kEnv as Parent\nGSM8kEnv = Parent",
        "import gsm8k_server as g\nfrom g import GSM8kEnv\nfrom environments.gsm8k_server import GSM8kEnv",
    ],
)
def test_a_base_class_may_be_in_another_file(tmp_path: Path, line: str) -> None:
    write(tmp_path, "environments/gsm8k_server.py", ATROPOS)
    base = "Parent" if "Parent" in line else "GSM8kEnv"
    path = write(tmp_path, "environments/distill.py", f"{line}\nclass Distill({base}): name = 'distill'")
    (found,) = discover([path]).environments
    assert (found.name, found.class_name, found.config_class) == ("distill", "Distill", "GsmConfig")


def test_a_base_class_in_a_file_that_does_not_parse_is_no_environment(tmp_path: Path) -> None:
    write(tmp_path, "broken.py", "class A(BaseEnv:")
    path = write(tmp_path, "child.py", "from broken import A\nclass B(A): pass")
    assert names(path) == []


def test_classes_that_derive_without_end_are_no_environments(tmp_path: Path) -> None:
    chain = "".join(f"class C{i}(C{i + 1}, C{i + 1}): pass\nclass Same(Same): pass\n" for i in range(5000))
    write(tmp_path, "chain.py", chain + "class Real(BaseEnv): pass")
    assert [each.class_name for each in discover([tmp_path]).environments] == ["Real"]


def test_a_complete_class_of_the_kit_is_listed_beside_its_variants(tmp_path: Path) -> None:
    source = "class A(Environment):\n  async def rollout(self, item, client): pass\nclass B(A): pass"
    write(tmp_path, "kit.py", "from clotho_environment import Environment\n" + source)
    assert names(tmp_path) == ["a", "b"]


def test_private_and_hidden_files_are_skipped_unless_they_are_named(tmp_path: Path) -> None:
    private = write(tmp_path, "_private.py", "class A(BaseEnv): pass")
    for name in ("__init__.py", ".hidden.py", ".venv/a.py", "__pycache__/a.py", "notes.txt"):
        write(tmp_path, name, "class A(BaseEnv): pass")
    write(tmp_path, "deep/er/b.py", "class B(BaseEnv): pass")
    assert names(tmp_path) == ["b"]
    assert names(private) == ["_private"]


def test_a_hostile_file_is_a_warning_and_the_others_are_found(tmp_path: Path) -> None:
    write(tmp_path, "bad.py", "class A(BaseEnv:\n")
    write(tmp_path, "bytes.py", b"x = '\xff\xfe'\n")
    write(tmp_path, "coding.py", b"# -*- coding: nonsense -*-\n")
    write(tmp_path, "deep.py", "x = " + "(" * 5000 + ")" * 5000)
    write(tmp_path, "huge.py", b"# " + b"x" * (10 * 1024 * 1024))
    write(tmp_path, "null.py", b"x = 1\x00\n")
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    os.mkfifo(tmp_path / "pipe.py")
    write(tmp_path, "good.py", "class A(BaseEnv): pass")
    found = discover([tmp_path])
    assert [each.name for each in found.environments] == ["good"]
    problems = {problem.path.name: problem.what for problem in found.problems}
    assert problems.keys() == {
        "bad.py", "bytes.py", "coding.py", "deep.py", "huge.py", "null.py", "dangling.py", "loop.py",
    }  # fmt: skip
    assert problems["bad.py"].startswith("does not parse: line 1")
    assert "10.5 MB" in problems["huge.py"]
    assert "loop" not in names(tmp_path)


def test_folders_with_symlink_loops_are_searched_once(tmp_path: Path) -> None:
    write(tmp_path, "inner/a.py", "class A(BaseEnv): pass")
    (tmp_path / "inner" / "again").symlink_to(tmp_path, target_is_directory=True)
    assert names(tmp_path) == ["a"]


def test_unreadable_files_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "locked.py", "class A(BaseEnv): pass")
    monkeypatch.setattr(Path, "open", _refuse)
    (problem,) = discover([tmp_path]).problems
    assert problem.what == "Permission denied"


def _refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.py"])
def test_missing_path_is_an_error(tmp_path: Path, name: str) -> None:
    (problem,) = discover([tmp_path / name]).problems
    assert problem.what == "No such file or directory"


def test_several_atropos_classes_in_a_file_are_a_warning(tmp_path: Path) -> None:
    write(tmp_path, "two.py", "class A(BaseEnv): name = 'a'\nclass B(BaseEnv): name = 'b'")
    found = discover([tmp_path])
    assert [each.name for each in found.environments] == ["a", "b"]
    assert "runs use B, never A" in found.problems[0].what


def test_imported_modules_beside_the_file_are_included(tmp_path: Path) -> None:
    main = write(tmp_path, "main.py", "import first\nfrom os import path\nimport elsewhere.thing")
    write(tmp_path, "first.py", "def f():\n    from second import x")
    write(tmp_path, "second.py", "import main")
    write(tmp_path, "unrelated.py", "")
    assert [path.name for path in local_imports(main)] == ["first.py", "main.py", "second.py"]


def test_the_limit_is_far_above_what_people_write() -> None:
    assert SIZE_LIMIT >= 512 * 1024
