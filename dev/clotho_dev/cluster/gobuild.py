"""Builds the cluster's programs from source with Go. Takes minutes once; an interrupted build leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from clotho_dev import REPOSITORY
from clotho_dev.cluster import disk
from clotho_dev.cluster.console import Step, step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.locks import only_one

MODULE = REPOSITORY / "dev" / "go"
KUEUE_MODULE = REPOSITORY / "dev" / "kueue"
REGISTRY_MODULE = REPOSITORY / "dev" / "registry"
GO_VERSION = (1, 26)
NO_DEBUG_SYMBOLS = "-gcflags=all=-dwarf=false"  # the linker would drop them: a seventh of the compiler's time
NEEDED_GIBIBYTES = 6  # module sources, compiler cache and results of a full build


def build(packages: Mapping[str, Sequence[str]], folder: Path, version: str, module: Path = MODULE) -> None:
    """Build each package and put it into the folder under every name it answers to."""
    go = _go()
    with only_one(folder / ".lock", "building the same programs"):
        missing = {p: names for p, names in packages.items() if not all((folder / name).exists() for name in names)}
        if not missing:
            return
        disk.require_room(folder, "the build", NEEDED_GIBIBYTES)
        with step("Downloading Go modules (once)") as progress:
            _run([go, "mod", "download", "-x"], module, progress, r"/@v/|# get .*?//[^/]+/(\S+)")
        _build(go, module, missing, folder, version)


def folder_of(dependency: str, module: Path) -> Path:
    """Where the sources of a dependency are."""
    argv = [_go(), "list", "-m", "-f", "{{.Dir}}", dependency]
    done = subprocess.run(argv, cwd=module, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise ClusterError(f"the sources of {dependency} are not there: {done.stderr.strip()}")
    return Path(done.stdout.strip())


def _build(go: str, module: Path, packages: Mapping[str, Sequence[str]], folder: Path, version: str) -> None:
    """All at once: while one program is linked, which takes one core, others are compiled."""
    title = f"Building {', '.join(name for names in packages.values() for name in names)} with Go (once; takes minutes)"
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch, step(title) as progress:
        flags = f"-s -w -X k8s.io/component-base/version.gitVersion=v{version}"
        argv = [go, "build", "-v", "-trimpath", NO_DEBUG_SYMBOLS, "-ldflags", flags, "-o", f"{scratch}/", *packages]
        _run(argv, module, progress, r"^(\S+)$")
        for package, names in packages.items():
            _made_of(package, Path(scratch)).rename(folder / names[0])
    for names in packages.values():
        _link_aliases(folder, names)


def _made_of(package: str, scratch: Path) -> Path:
    """Go names a program after the last part of its path; that of `.` is alone."""
    return scratch / Path(package).name if Path(package).name else next(scratch.iterdir())


def _link_aliases(folder: Path, names: Sequence[str]) -> None:
    for alias in names[1:]:
        link = folder / f".{alias}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(names[0])
        link.rename(folder / alias)


def _run(argv: Sequence[str], module: Path, progress: Step, interesting: str) -> None:
    """Shows the compiler's progress; on failure, the end of its output."""
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "CGO_ENABLED": "0",
        **_little_garbage_collection(),
    }
    process = subprocess.Popen(
        argv, cwd=module, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines: list[str] = []
    count = 0
    try:
        for line in process.stdout or []:
            lines = [*lines[-40:], line.rstrip()]
            if match := re.search(interesting, line):
                count += 1
                progress.update(f"{count} packages, {match.group(match.lastindex or 0).strip()}")
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code != 0:
        reason = "\n".join(f"  {text}" for text in lines[-15:])
        raise ClusterError(disk.FULL if disk.is_full(lines) else f"{argv[1]} failed:\n{reason}")


def _little_garbage_collection() -> dict[str, str]:
    """A compiler that collects no garbage until it is short of memory needs a quarter less CPU."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = memory // (4 * (os.cpu_count() or 1))  # one compiler for each core
    return {"GOGC": "off", "GOMEMLIMIT": str(each)}


def _go() -> str:
    go = shutil.which("go")
    wanted = ".".join(map(str, GO_VERSION))
    if go is None:
        raise ClusterError(
            "the Kubernetes programs are neither on PATH, in the cache nor downloadable, and building them needs"
            f" Go {wanted} or newer: install Go, or set KUBEBUILDER_ASSETS to a folder that holds them"
        )
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"go(\d+)\.(\d+)", answer)
    if found is None or (int(found[1]), int(found[2])) < GO_VERSION:
        raise ClusterError(
            f"{go} is {answer.strip() or 'broken'}; building the Kubernetes programs needs Go {wanted} or newer"
        )
    return go
