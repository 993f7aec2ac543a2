"""`make release`: one change, ready to commit, that gives a new version to everything that has one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import yaml

from clotho_dev import REPOSITORY
from clotho_dev.cluster.chart import IMAGE_KEYS, VARIANT_KEYS
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release import version
from clotho_dev.release.version import Version

DISTRIBUTION = "clotho-rl"
PYPROJECT, LOCK, CHART, VALUES = "pyproject.toml", "uv.lock", "charts/clotho/Chart.yaml", "charts/clotho/values.yaml"
CHANGELOG = "CHANGELOG.md"
IMAGES = {  # files that name images of the release, and how many
    "operator/clotho/render/settings.py": 3,
    "docs/operator-settings.md": 3,
    "images/environment/Containerfile.atropos": 1,
    "images/environment/Containerfile.verifiers": 1,
    "images/trainer/Containerfile.tinker": 1,
    "images/trainer/Containerfile.vllm": 1,
    "examples/atropos/atropos.yaml": 1,
    "examples/own-environment/image/Containerfile": 1,
    "examples/tinker/tinker.yaml": 1,
    "examples/verifiers/letters.yaml": 1,
    "examples/verifiers/verifiers.yaml": 1,
}
FILES = (PYPROJECT, LOCK, CHART, VALUES, CHANGELOG, *IMAGES)
UNRELEASED = "## Unreleased\n"


@dataclass(frozen=True)
class Pushed:
    """What `make push` wrote: the registry, and digests by the chart's names of the images."""

    registry: str
    digests: Mapping[str, str] = field(default_factory=dict)


def read_pushed(file: Path) -> Pushed:
    try:
        images = yaml.safe_load(file.read_text())["images"]
        pushed = Pushed(images["registry"], images["digests"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ClusterError(f"DIGESTS={file} is no file that `make push` has written") from error
    if missing := sorted(set(IMAGE_KEYS.values()) - {key for key, digest in pushed.digests.items() if digest}):
        raise ClusterError(f"DIGESTS={file} has no digest of {', '.join(missing)}; run `make push` for all images")
    return pushed


def current_version(files: Mapping[str, str]) -> Version:
    return version.parse(yaml.safe_load(files[CHART])["version"])


def edited(files: Mapping[str, str], new: Version, today: date, pushed: Pushed | None) -> dict[str, str]:
    """The files with the new version; nothing else of them changes."""
    old = current_version(files)
    version.require_newer(new, old)
    registry = yaml.safe_load(files[VALUES])["images"]["registry"]
    images_at = f"{re.escape(registry)}/([a-z-]+):{re.escape(str(old))}"
    changed = {
        PYPROJECT: _replace(files, PYPROJECT, r'(?m)^version = ".*"$', f'version = "{new.in_python}"'),
        LOCK: _replace(files, LOCK, rf'(name = "{DISTRIBUTION}"\nversion = )".*"', rf'\g<1>"{new.in_python}"'),
        CHART: _replace(files, CHART, r"(?m)^(version|appVersion): .*$", rf"\g<1>: {new}", times=2),
        CHANGELOG: _changelog(files[CHANGELOG], new, today),
        VALUES: values_with(files[VALUES], pushed) if pushed else files[VALUES],
    }
    target = f"{pushed.registry if pushed else registry}/\\g<1>:{new}"
    return changed | {file: _replace(files, file, images_at, target, times) for file, times in IMAGES.items()}


def values_with(text: str, pushed: Pushed) -> str:
    """The chart's values with the pushed images as their defaults."""
    keys = (*IMAGE_KEYS.values(), *VARIANT_KEYS.values())
    digests = ", ".join(f'{key}: "{pushed.digests.get(key, "")}"' for key in keys)
    text, registries = re.subn(r"(?m)^  registry: .*$", f"  registry: {pushed.registry}", text)
    text, places = re.subn(r"(?m)^  digests: .*$", f"  digests: {{{digests}}}", text)
    if (registries, places) != (1, 1):
        raise ClusterError(f"{VALUES} has no single images.registry and images.digests to set")
    return text


def _changelog(text: str, new: Version, today: date) -> str:
    before, found, after = text.partition(UNRELEASED)
    if not found or not after.partition("\n## ")[0].strip():
        raise ClusterError(f"{CHANGELOG} has nothing under `{UNRELEASED.strip()}`: describe what {new} changes first")
    return f"{before}{UNRELEASED}\n## {new} ({today.isoformat()})\n{after}"


def _replace(files: Mapping[str, str], file: str, pattern: str, replacement: str, times: int = 1) -> str:
    text, count = re.subn(pattern, replacement, files[file])
    if count != times:
        raise ClusterError(
            f"{file} names its version {count} times instead of {times}; correct it, or dev/clotho_dev/release"
        )
    return text


def require_clean_tree() -> None:
    done = subprocess.run(["git", "status", "--porcelain"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"a release starts from a git checkout: {done.stderr.strip()}")
    if lines := done.stdout.splitlines():
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        raise ClusterError(f"the working tree has changes ({lines[0][3:]}{more}): commit or stash them first")


def read_files(root: Path = REPOSITORY) -> dict[str, str]:
    return {file: (root / file).read_text() for file in FILES}


def write_files(files: Mapping[str, str], root: Path = REPOSITORY) -> None:
    for file, text in files.items():
        (root / file).write_text(text)
