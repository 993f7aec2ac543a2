"""Versions of the packages that decide what a GPU computes: those of uv.lock, which the trainer image installs, and
those of this process."""

import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

LOCK = Path(__file__).parents[2] / "uv.lock"
PACKAGES = ("torch", "triton", "transformers", "trl", "peft", "bitsandbytes")


def locked() -> dict[str, str]:
    packages = tomllib.loads(LOCK.read_text())["package"]
    return {package["name"]: package["version"] for package in packages if package["name"] in PACKAGES}


def running() -> dict[str, str | None]:
    """None where a package is missing."""
    return {name: _version(name) for name in PACKAGES}


def differences(expected: Mapping[str, str], found: Mapping[str, str | None]) -> list[str]:
    """A build label such as +cu130 is no difference: it names the CUDA libraries, not the code."""
    return [
        f"{name}: {found.get(name) or 'not installed'}, locked {version}"
        for name, version in expected.items()
        if (found.get(name) or "").partition("+")[0] != version
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
