"""Each image installs exactly what the lock file lists, and nothing of the others or of our own tools."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
LOCK = tomllib.loads((REPOSITORY / "uv.lock").read_text())
PACKAGES: dict[str, list[dict[str, Any]]] = {}
for _package in LOCK["package"]:
    PACKAGES.setdefault(_package["name"], []).append(_package)


def closure(extra: str) -> set[str]:
    """Names that the lock file reaches from the distribution with one extra."""
    own = PACKAGES["clotho-rl"][0]
    waiting = [*own["dependencies"], *own["optional-dependencies"][extra]]
    reached: set[tuple[str, str]] = set()
    while waiting:
        need = waiting.pop()
        for part in ("", *need.get("extra", [])):
            if (need["name"], part) not in reached:
                reached.add((need["name"], part))
                waiting += needs_of(need["name"], part)
    return {name for name, _ in reached}


def needs_of(name: str, extra: str) -> Iterator[dict[str, Any]]:
    for package in PACKAGES[name]:
        yield from package.get("optional-dependencies", {}).get(extra, []) if extra else package.get("dependencies", [])


EXTRAS = {
    "operator": "operator",
    "api-server": "api-server",
    "trainer": "trainer",
    "environment": "environment-reasoning-gym",
}


@pytest.mark.parametrize("image", EXTRAS)
def test_requirements_follow_the_lock_file(image: str) -> None:
    """Regenerate with `make requirements`."""
    text = (REPOSITORY / "images" / image / "requirements.txt").read_text()
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", text, re.MULTILINE))
    assert set(pinned) == closure(EXTRAS[image]) - {"clotho-rl"}
    for name, version in pinned.items():
        assert version in {package["version"] for package in PACKAGES[name]}


VARIANTS = {
    "environment/requirements-verifiers.txt": ("environment-reasoning-gym", "environment-verifiers"),
    "trainer/requirements-tinker.txt": ("trainer-tinker",),
}


@pytest.mark.parametrize("file", VARIANTS)
def test_requirements_of_variants_follow_the_lock_file(file: str) -> None:
    text = (REPOSITORY / "images" / file).read_text()
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", text, re.MULTILINE))
    assert set(pinned) == {name for extra in VARIANTS[file] for name in closure(extra)} - {"clotho-rl"}
    assert all(version in {each["version"] for each in PACKAGES[name]} for name, version in pinned.items())


def test_variants_are_resolved_for_the_older_python_of_the_base_that_is_made_without_a_registry() -> None:
    text = (REPOSITORY / "make" / "requirements.mk").read_text()
    assert [*re.findall(r"pip compile .*--python-version (\S+)", text)] == ["3.11", "3.11"]


@pytest.mark.parametrize("image", ["operator", "api-server", "environment"])
def test_only_the_trainer_has_torch(image: str) -> None:
    assert not {"torch", "trl", "peft"} & closure(EXTRAS[image])


SOURCES = {
    "agent": ["operator/clotho"],
    "api-server": ["images/api-server"],
    "trainer": ["images/trainer"],
    "trainer-tinker": ["images/trainer"],
    "environment": ["images/environment"],
    "environment-reasoning-gym": ["images/environment"],
    "environment-verifiers": ["images/environment"],
}
MODULES = {"pyyaml": "yaml", "flash-attn-4": "flash_attn"}  # where it is not the package's name


@pytest.mark.parametrize("extra", SOURCES)
def test_every_dependency_is_imported(extra: str) -> None:
    """What no line imports is a package too many in an image."""
    named = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    packages = {re.split(r"[\[=<>~!]", need)[0] for need in named} - {"clotho-rl"}
    imported = {module for folder in SOURCES[extra] for module in imports(REPOSITORY / folder)}
    assert {name for name in packages if MODULES.get(name, name).replace("-", "_") not in imported} == set()


def imports(folder: Path) -> Iterator[str]:
    """The first part of every module that is imported, at whatever place."""
    for path in folder.rglob("*.py"):
        yield from (module.partition(".")[0] for module in imported_by(path))


def imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("program", ["demo", "cluster/__main__"])
def test_the_small_environment_of_the_demo_has_what_its_modules_import(program: str) -> None:
    """On a terminal as well, where it draws what `clotho run watch` does."""
    named = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]["cluster"]
    installed = {MODULES.get(name, name) for name in (re.split(r"[=<>]", need)[0] for need in named)}
    waiting, read, foreign = [REPOSITORY / "dev" / "clotho_dev" / f"{program}.py"], set[Path](), set[str]()
    while waiting:
        path = waiting.pop()
        if path in read:
            continue
        read.add(path)
        for module in imported_by(path):
            first = module.partition(".")[0]
            if first in {"clotho", "clotho_dev"}:
                waiting += own_files(module)
            elif first not in sys.stdlib_module_names:
                foreign.add(first)
    assert foreign <= installed


def own_files(module: str) -> list[Path]:
    folder = REPOSITORY / ("dev" if module.startswith("clotho_dev") else "operator")
    place = folder.joinpath(*module.split("."))
    return [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()]


CONTAINERFILES = sorted((REPOSITORY / "images").glob("*/Containerfile"))


@pytest.mark.parametrize("containerfile", CONTAINERFILES, ids=lambda path: path.parent.name)
def test_base_image_is_pinned_by_digest(containerfile: Path) -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", containerfile.read_text(), re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.12\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert set(re.findall(r"^FROM (\S+)", containerfile.read_text(), re.MULTILINE)) == {"${BASE}"}


def test_all_images_share_one_base() -> None:
    assert len({re.search(r"^ARG BASE=(\S+)$", path.read_text(), re.MULTILINE)[1] for path in CONTAINERFILES}) == 1  # type: ignore[index]
