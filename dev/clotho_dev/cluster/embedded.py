"""The life of an embedded cluster: up, down and status, also after a crash."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from clotho_dev import REPOSITORY
from clotho_dev.cluster import binaries, cgroups, control_plane, daemon, node, packages, store
from clotho_dev.cluster.console import say, step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.locks import only_one
from clotho_dev.cluster.process import Processes, die_with_parent
from clotho_dev.cluster.state import ClusterState, Folder, Options

UP_SECONDS = 180


def up(folder: Folder, options: Options, *, bound: bool = False) -> None:
    """A bound cluster ends with the process that started it, however that ends."""
    if options.profile == "node":
        packages.require_root("the node profile")
        packages.require(packages.NODE, packages.EGRESS if options.egress else {})
        node.require_short_socket_path(folder)
    binaries.find(control_plane.PROGRAMS if options.profile == "control-plane" else node_programs())
    with _only_one_start(folder):
        if folder.daemon() is not None:
            _say_already_running(folder, options)
            return
        _start(folder, options, bound)
    remove_abandoned()
    say(f"\nUse it with:  export KUBECONFIG={folder.kubeconfig}")


def _start(folder: Folder, options: Options, bound: bool) -> None:
    down(folder)
    folder.logs.mkdir(parents=True)
    folder.write_options(options)
    if options.profile == "node":
        store.prepare(folder)
    with step(f"Starting Kubernetes {binaries.KUBERNETES_VERSION} ({options.profile})") as progress:
        process = _start_daemon(folder, options, bound)
        try:
            state = _follow(folder, process, progress.update)
        except BaseException:
            down(folder, keep_logs=True)
            raise
    _print_timings(state)


def down(folder: Folder, *, keep_logs: bool = False) -> None:
    """Also cleans up after a killed launcher or a reboot: what is left then is the folder and empty control groups."""
    if (pid := folder.daemon()) is not None:
        os.kill(pid, signal.SIGKILL)
        while folder.daemon() is not None:
            time.sleep(0.02)
    if os.geteuid() == 0:
        cgroups.remove(folder.name)
    if not keep_logs:
        shutil.rmtree(folder.path, ignore_errors=True)


@contextmanager
def containerd_alone(folder: Folder) -> Iterator[bool]:
    """Lets images be imported before there is a cluster. False while one is running, which has the store to itself."""
    with _only_one_start(folder):
        if folder.daemon() is not None:
            yield False
            return
        node.require_short_socket_path(folder)
        down(folder)
        folder.logs.mkdir(parents=True)
        store.prepare(folder)
        component = node.containerd(folder)
        # Its sockets and mounts go with it, as those of a node do.
        apart = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "sh", *component.argv]
        processes = Processes(folder.logs)
        try:
            processes.start(dataclasses.replace(component, argv=apart))
            processes.wait_ready()
            yield True
        finally:
            processes.stop()
            down(folder)


def _only_one_start(folder: Folder) -> AbstractContextManager[None]:
    return only_one(folder.path.with_name(f"{folder.name}.up.lock"), f"starting cluster {folder.name!r}")


def remove_abandoned() -> None:
    """Images and state of clusters whose clone was deleted: gigabytes each, and no other command removes them."""
    for images in store.abandoned():
        with step(f"Removing the images of cluster {images.name}, whose clone was deleted"):
            down(Folder(images.name))
            shutil.rmtree(images, ignore_errors=True)  # another process may be doing the same


def status(folder: Folder) -> int:
    state = folder.read_state()
    if state is None:
        say(f"No cluster {folder.name!r}; start one with `make cluster`.")
        return 3
    alive = folder.daemon() is not None
    phase = state.phase if alive else "stopped"
    print(f"{'CLUSTER':<14}{'PROFILE':<16}{'PHASE':<10}KUBECONFIG")
    print(f"{folder.name:<14}{folder.read_options().profile:<16}{phase:<10}{folder.kubeconfig}")
    print(f"\n{'COMPONENT':<26}{'STATE':<9}READY AFTER")
    for component in state.components:
        ready = f"{component.ready_after:.1f} s" if component.ready_after is not None else "-"
        print(f"{component.name:<26}{'running' if alive and component.alive else 'dead':<9}{ready}")
    if state.message:
        print(f"\n{state.message}")
    return 0 if phase == "ready" else 1


def process_inside(folder: Folder) -> int:
    """A process whose network namespace is the node's, e.g. for `nsenter`."""
    daemon_pid = folder.daemon()
    ours = Path("/proc/self/ns/net").readlink()
    children = Path(f"/proc/{daemon_pid}/task/{daemon_pid}/children").read_text().split() if daemon_pid else []
    for pid in map(int, children):
        if Path(f"/proc/{pid}/ns/net").readlink() != ours:
            return pid
    raise ClusterError(f"cluster {folder.name!r} has no node that is running")


def kubectl_for(folder: Folder, kubeconfig: Path | None = None) -> Kubectl:
    return Kubectl(binaries.find(["kubectl"])["kubectl"], kubeconfig or folder.kubeconfig)


def _say_already_running(folder: Folder, options: Options) -> None:
    running = folder.read_options()
    if running.profile != options.profile:
        raise ClusterError(
            f"cluster {folder.name!r} is running with profile {running.profile}; stop it first with `make cluster-down`"
        )
    state = folder.read_state()
    if state is not None and state.phase == "failed":
        raise ClusterError(f"cluster {folder.name!r} is broken: {state.message}\nStop it with `make cluster-down`.")
    say(f"Cluster {folder.name!r} is already running.\nUse it with:  export KUBECONFIG={folder.kubeconfig}")


def node_programs() -> list[str]:
    return [*control_plane.PROGRAMS, *node.PROGRAMS]


def _start_daemon(folder: Folder, options: Options, bound: bool) -> subprocess.Popen[bytes]:
    command = "run-node" if options.profile == "node" else "run-control-plane"
    search = os.pathsep.join([str(REPOSITORY / "dev"), os.environ.get("PYTHONPATH", "")])
    with (folder.logs / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            daemon.itself(command, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=not bound,
            preexec_fn=die_with_parent if bound else None,  # noqa: PLW1509 - clusters are started from the main thread
            env={**os.environ, "PYTHONPATH": search},
        )
    folder.write_daemon(process.pid)
    return process


def _follow(folder: Folder, process: subprocess.Popen[bytes], update: Callable[[str], None]) -> ClusterState:
    deadline = time.monotonic() + UP_SECONDS
    while True:
        state = folder.read_state()
        if state is not None and state.phase == "failed":
            raise ClusterError(state.message)
        if state is not None and state.phase == "ready":
            return state
        if process.poll() is not None:
            log = folder.logs / "daemon.log"
            raise ClusterError(f"the cluster's daemon ended; the end of {log}:\n{log.read_text()[-1500:]}")
        if time.monotonic() > deadline:
            raise ClusterError(f"the cluster did not come up in {UP_SECONDS} s; its logs are in {folder.logs}")
        if state is not None:
            waiting = [c.name for c in state.components if c.ready_after is None]
            update(f"waiting for {', '.join(waiting) or 'the next component'}")
        time.sleep(0.05)


def _print_timings(state: ClusterState) -> None:
    for title, seconds in state.seconds.items():
        say(f"  {title:<22}{seconds:6.1f} s")
