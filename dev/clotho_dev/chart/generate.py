"""All generated files around the chart with the text that they should have."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from clotho.api import admission, nesting
from clotho_dev import REPOSITORY
from clotho_dev.chart import install
from clotho_dev.chart.dashboards import render
from clotho_dev.chart.fleet import FLEET
from clotho_dev.chart.run import ONE_RUN

CHART: Final = REPOSITORY / "charts" / "clotho"


def chart_files() -> dict[Path, str]:
    """Inside the chart: needs nothing but this repository."""
    crds = {
        CHART / "files" / "crds" / path.name: path.read_text() for path in sorted((REPOSITORY / "crds").glob("*.yaml"))
    }
    dashboards = {"fleet.json": FLEET, "run.json": ONE_RUN}
    admissions = {
        "policy.yaml": admission.admission_policy(),
        "binding.yaml": admission.binding(),
        "nesting-policy.yaml": nesting.nesting_policy(),
        "nesting-binding.yaml": nesting.nesting_binding(),
    }
    return (
        crds
        | {CHART / "files" / "dashboards" / name: render(each) for name, each in dashboards.items()}
        | {CHART / "files" / "admission" / name: admission.render(each) for name, each in admissions.items()}
    )


def install_files(helm: Path) -> dict[Path, str]:
    """From the chart as it stands, with Helm."""
    folder = REPOSITORY / "install"
    return {
        folder / "clotho.yaml": install.manifest(helm, CHART),
        folder / "kustomization.yaml": install.KUSTOMIZATION,
    }


def write(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def stale(files: dict[Path, str]) -> list[str]:
    """What differs, and what no longer belongs into the same folders."""
    folders = {path.parent for path in files}
    differing = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    surplus = [path for folder in folders for path in folder.glob("*") if path not in files]
    return sorted(str(path.relative_to(REPOSITORY)) for path in [*differing, *surplus])
