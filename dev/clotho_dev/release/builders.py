"""The programs that can build and push our images: buildah (with the store of the embedded cluster), podman, docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from clotho_dev import REPOSITORY
from clotho_dev.cluster import buildah, images
from clotho_dev.cluster.console import step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release.destination import refusal

NAMES = ("buildah", "podman", "docker")
LAYERS = ("--format=oci", "--compression-format=zstd")  # gzip takes minutes for the trainer's seven gigabytes


class Builder(Protocol):
    program: str

    def at_work(self) -> AbstractContextManager[None]: ...
    def build(self, image: str, reference: str, labels: Mapping[str, str]) -> None: ...
    def run_python(self, reference: str, code: str) -> str: ...
    def push(self, reference: str, *, plain_http: bool) -> str: ...
    def forget(self, reference: str) -> None: ...


def choose(wanted: str | None) -> Builder:
    """$BUILDER, else buildah as root on Linux, else podman, else docker."""
    if wanted and wanted not in NAMES:
        raise ClusterError(f"BUILDER={wanted} is unknown; choose one of {', '.join(NAMES)}")
    is_root = os.geteuid() == 0
    for name in [wanted] if wanted else NAMES:
        if shutil.which(name) and (name != "buildah" or is_root):
            return Buildah() if name == "buildah" else Client(name)
    if wanted == "buildah" and not is_root:
        raise ClusterError("BUILDER=buildah needs root: run it with sudo, as in `sudo make push ...`")
    raise ClusterError(
        f"{wanted} is not installed" if wanted else "no program can build images: install podman, docker or buildah"
    )


class Buildah:
    """Shares the layers that `make images` has built."""

    program = "buildah"

    def __init__(self) -> None:
        self._base: str | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._base = images.base_image()
        with images.building(self._base):
            yield

    def build(self, image: str, reference: str, labels: Mapping[str, str]) -> None:
        images.build_image(image, reference, self._base, labels)

    def run_python(self, reference: str, code: str) -> str:
        container = buildah.buildah("from", "--pull-never", reference).strip()
        try:
            return buildah.buildah("run", "--isolation=chroot", container, "--", "python", "-c", code)
        finally:
            buildah.buildah("rm", container)

    def push(self, reference: str, *, plain_http: bool) -> str:
        return _push_with_digest_file(buildah.argv_of("push", *LAYERS), self.program, reference, plain_http)

    def forget(self, reference: str) -> None:
        """The layers stay, with the tag that `make images` gave them."""
        buildah.buildah("rmi", reference)


class Client:
    """podman or docker: both understand the same commands, except that docker has no file for the digest."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._base = images.chosen_base()

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()

    def build(self, image: str, reference: str, labels: Mapping[str, str]) -> None:
        if image in images.PARENTS:
            parent = images.PARENTS[image]
            self.build(parent, images.tag_of(parent, self._base), {})
        marks = [f"--label={key}={value}" for key, value in labels.items()]
        under = [f"--build-arg={each}" for each in images.starts_from(image, self._base)]
        trusted = images.own_certificates() if self.program == "podman" else []  # docker's builds take no volumes
        argv = [self.program, "build", f"--file={images.containerfile(image)}", f"--tag={reference}"]
        argv += [*trusted, *marks, *under]
        with step(f"Building image {image}") as progress:
            buildah.stream([*argv, str(REPOSITORY)], progress)

    def run_python(self, reference: str, code: str) -> str:
        argv = [self.program, "run", "--rm", "--network=none", "--entrypoint=python", reference, "-c", code]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"{self.program} could not run {reference}: {done.stderr.strip()}")
        return done.stdout

    def push(self, reference: str, *, plain_http: bool) -> str:
        if self.program == "podman":
            return _push_with_digest_file(["podman", "push", *LAYERS], self.program, reference, plain_http)
        return digest_in(_push(["docker", "push", reference], "docker", reference))

    def forget(self, reference: str) -> None:
        """The store is the user's own: nothing is removed from it."""


def digest_in(output: str) -> str:
    """docker prints it on the last line of a push."""
    found = re.search(r"digest: (sha256:[0-9a-f]{64})", output)
    if found is None:
        raise ClusterError("docker pushed the image without its digest; update docker, or set BUILDER=podman")
    return found[1]


def _push_with_digest_file(argv: list[str], program: str, reference: str, plain_http: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="clotho-push-") as folder:
        file = Path(folder) / "digest"
        insecure = ["--tls-verify=false"] if plain_http else []
        _push([*argv, *insecure, f"--digestfile={file}", reference], program, reference)
        return file.read_text().strip()


def _push(argv: list[str], program: str, reference: str) -> str:
    with step(f"Pushing {reference}") as progress:
        code, lines = buildah.follow(argv, progress)
        output = "\n".join(lines)
        if code != 0:
            raise ClusterError(refusal(reference, program, output))
    return output
