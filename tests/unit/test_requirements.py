"""Each image installs exactly what the lock file says, and nothing of the others or of our own tools."""

from __future__ import annotations

import re
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
    own = PACKAGES["clotho"][0]
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
    assert set(pinned) == closure(EXTRAS[image]) - {"clotho"}
    for name, version in pinned.items():
        assert version in {package["version"] for package in PACKAGES[name]}


@pytest.mark.parametrize("image", ["operator", "api-server", "environment"])
def test_only_the_trainer_has_torch(image: str) -> None:
    assert not {"torch", "trl", "peft"} & closure(EXTRAS[image])
