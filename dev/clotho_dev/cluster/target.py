"""Which cluster to work on: the embedded one, kind, or kubectl's current context. The choice is printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from clotho_dev import REPOSITORY
from clotho_dev.cluster import binaries, embedded, images
from clotho_dev.cluster.console import say, step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.state import DEFAULT_NAME, Folder, Options
from clotho_dev.ports import free_port
from clotho_dev.release import builders, destination, push

KIND_CLUSTER = "clotho"
CHOICES = ("embedded", "kind", "current")
ANSWER_SECONDS = 15


class Target(Protocol):
    """A cluster that can be started, given our images, and ended."""

    name: str

    def up(self) -> Path: ...
    def provide_images(self, names: Iterable[str]) -> Mapping[str, str]: ...
    def down(self) -> None: ...


class Embedded:
    name = "embedded"

    def __init__(self, folder: Folder | None = None, options: Options | None = None, *, bound: bool = False) -> None:
        self.folder = folder or Folder(DEFAULT_NAME)
        self.options = options or Options("node", free_port())
        self.bound = bound

    def up(self) -> Path:
        embedded.up(self.folder, self.options, bound=self.bound)
        return self.folder.kubeconfig

    def provide_images(self, names: Iterable[str] = images.NAMES) -> Mapping[str, str]:
        return images.provide(self.folder, names)

    def down(self) -> None:
        was_there = self.folder.path.exists()
        embedded.down(self.folder)
        say("The cluster and everything it created are removed." if was_there else "No cluster was running.")


class Kind:
    name = "kind"

    def up(self) -> Path:
        existing = _run("kind", "get", "clusters").split()
        kubeconfig = Folder("kind").path / "kubeconfig"
        kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        if KIND_CLUSTER not in existing:
            with step("Creating a kind cluster"):
                _run(
                    "kind",
                    "create",
                    "cluster",
                    "--name",
                    KIND_CLUSTER,
                    "--wait",
                    "120s",
                    "--kubeconfig",
                    str(kubeconfig),
                )
        kubeconfig.write_text(_run("kind", "get", "kubeconfig", "--name", KIND_CLUSTER))
        say(f"Use it with:  export KUBECONFIG={kubeconfig}")
        return kubeconfig

    def provide_images(self, names: Iterable[str] = images.NAMES) -> Mapping[str, str]:
        tags = {name: images.tag_of(name, None) for name in names}
        for name, tag in tags.items():
            builders.Client("docker").build(name, tag, {})
            with step(f"Loading image {name} into kind"):
                _run("kind", "load", "docker-image", tag, "--name", KIND_CLUSTER)
        return tags

    def down(self) -> None:
        _run("kind", "delete", "cluster", "--name", KIND_CLUSTER)


class Current:
    """A cluster that exists already: it is used, never created or deleted."""

    name = "current"

    def up(self) -> Path:
        """The context of this moment, in a file: a switch to another one meanwhile does not redirect what follows."""
        kubectl = str(binaries.find(["kubectl"])["kubectl"])
        context = _context_of(kubectl)
        kubeconfig = Folder("current").kubeconfig
        kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(_run(kubectl, "config", "view", "--minify", "--flatten", "--raw"))
        say(f"Using the current kubectl context {context!r}.")
        _run(kubectl, "get", "namespaces", "--output=name", f"--request-timeout={ANSWER_SECONDS}s")
        return kubeconfig

    def provide_images(self, names: Iterable[str] = images.NAMES) -> Mapping[str, str]:
        registry = os.environ.get("REGISTRY")
        if not registry:
            raise ClusterError("CLUSTER=current needs REGISTRY=<host/path> that the cluster can pull our images from")
        to = destination.parse(registry, plain_http=os.environ.get("PLAIN_HTTP") == "1")
        digests = push.push(to, os.environ.get("TAG") or "dev", builders.choose(os.environ.get("BUILDER")), names)
        return push.by_digest(to, digests)

    def down(self) -> None:
        say("The current context was not changed.")


def choose(wanted: str | None) -> Target:
    """$CLUSTER, else embedded where it can run, else kind. An existing cluster is used only when asked for."""
    if wanted == "embedded":
        return Embedded()
    if wanted == "kind":
        return Kind()
    if wanted == "current":
        return Current()
    if wanted:
        raise ClusterError(f"CLUSTER={wanted} is unknown; choose one of {', '.join(CHOICES)}")
    if sys.platform == "linux" and os.geteuid() == 0:
        say("CLUSTER=embedded (Linux and root: a real node on this machine; kind or current are the alternatives)")
        return Embedded()
    if shutil.which("kind") and _docker_runs():
        say("CLUSTER=kind (Docker and kind are installed; with sudo the embedded cluster is used)")
        return Kind()
    raise ClusterError(
        "no cluster can be started: run as root on Linux for the embedded one (sudo make ...), install Docker and kind,"
        " or set CLUSTER=current to use kubectl's current context"
    )


def _context_of(kubectl: str) -> str:
    try:
        return _run(kubectl, "config", "current-context").strip()
    except ClusterError as error:
        raise ClusterError(
            "kubectl has no current context: choose one with `kubectl config use-context NAME`, or name its file in"
            " KUBECONFIG"
        ) from error


def _docker_runs() -> bool:
    return (
        shutil.which("docker") is not None
        and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    )


def _run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        raise ClusterError(f"{argv[0]} is not installed; install it, or choose another cluster with CLUSTER=embedded")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(argv[:3])}` failed: {done.stderr.strip()}")
    return done.stdout
