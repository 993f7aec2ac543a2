"""A sweep file as the runs that it describes; what is wrong in it is reported with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from clotho.authoring.sweep import Sweep, SweepError, Variant, expand, parse_sweep
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.documents import documents_of, line_of, read_text, title
from clotho.cli.files.manifests import Manifest
from clotho.cli.files.run_files import read_run_and_maps


class SweepFile(NamedTuple):
    sweep: Sweep
    variants: list[Variant]
    maps: list[Manifest]  # ConfigMaps of the base run
    metadata: dict[str, Any]  # of the base run


def read_sweep(path: Path) -> SweepFile:
    text = read_text(path)
    documents = documents_of(text, path)
    if len(documents) != 1:
        raise Failure(f"{title(path)} contains {len(documents)} documents; a sweep is one", Exit.USAGE)
    try:
        sweep = parse_sweep(documents[0])
        base, maps = _base(sweep, path)
        return SweepFile(sweep, expand(sweep, base["spec"]), maps, base.get("metadata", {}))
    except SweepError as error:
        places = [f"{title(path)}, line {line_of(text, each.path)}" for each in error.problems]
        lines = [f"{place}: {each}" for place, each in zip(places, error.problems, strict=True)]
        raise Failure("\n".join(lines), Exit.USAGE) from error


def _base(sweep: Sweep, path: Path) -> tuple[Manifest, list[Manifest]]:
    """A relative `base` is beside the sweep file."""
    if not sweep.base:
        return {"spec": sweep.spec}, []
    folder = Path() if str(path) == "-" else path.parent
    return read_run_and_maps(folder / sweep.base)
