"""The process that a cluster lives in. Killing it, by whatever signal, ends the cluster and everything it made.

The node profile gets network, mount and process namespaces of its own: when its first process goes, the kernel takes
pods, mounts, bridges and rules away with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from clotho_dev.cluster import binaries, cgroups, control_plane, manifests, node, volumes
from clotho_dev.cluster.control_plane import LOOPBACK, Addresses, ControlPlane
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.process import Component, Processes, die_with_parent
from clotho_dev.cluster.state import ClusterState, ComponentState, Folder

API_SERVER_PORT = 6443  # inside; the usual one, which network policies allow
SLIRP_DNS = "10.0.2.3"
WATCH_SECONDS = 0.5


def run_control_plane(folder: Folder) -> None:
    options = folder.read_options()
    programs = binaries.find(control_plane.PROGRAMS)
    plane = ControlPlane(folder.path, programs, Addresses(options.port), audit_log=options.audit)
    with _reporting(folder, plane.processes) as report, plane:
        report.ready()
        report.watch()


def run_node(folder: Folder) -> None:
    """The host's side: it holds the listening socket and the namespaces' first process."""
    options = folder.read_options()
    listener = socket.create_server((LOOPBACK, options.port))
    listener.set_inheritable(True)
    cgroups.create(folder.name)
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    inside = subprocess.Popen(
        [*namespaces, *itself("inside", folder), "--listener", str(listener.fileno())],
        pass_fds=[listener.fileno()],
        preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    if options.egress:
        subprocess.Popen(
            ["slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", str(inside.pid), "egress0"],
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
    signal.signal(signal.SIGTERM, lambda *_: inside.kill())
    inside.wait()
    cgroups.remove(folder.name)


def run_inside(folder: Folder, listener: int) -> None:
    """The first process of the namespaces: it prepares mounts and network, starts the components and reaps orphans."""
    options = folder.read_options()
    programs = binaries.find([*control_plane.PROGRAMS, *node.PROGRAMS])
    _prepare_namespaces(folder)
    addresses = Addresses(API_SERVER_PORT, node.NODE_ADDRESS, options.port)
    plane = ControlPlane(folder.path, programs, addresses, audit_log=options.audit)
    inside = plane.write_kubeconfig(folder.inside_kubeconfig.name, "inside", ["system:masters"])
    kubectl = Kubectl(programs["kubectl"], inside)
    upstreams = [SLIRP_DNS] if options.egress else []
    (folder.path / "resolv.conf").write_text("".join(f"nameserver {address}\n" for address in upstreams))
    with _reporting(folder, plane.processes) as report:
        plane.processes.start(node.containerd(folder))
        plane.start()
        node.forget_old_containers(folder)
        node.import_own_images(folder, programs)
        report.lap("control plane")
        forward = [*itself("forward", folder), "--listener", str(listener)]
        plane.processes.start(Component("forwarder", forward, descriptors=(listener,)))
        plane.processes.start(node.kubelet(folder, plane, programs))
        plane.processes.start(node.kube_proxy(folder, plane, programs))
        kubectl.apply([*manifests.dns(upstreams), manifests.storage_class(), *volumes.offer(folder.volumes)])
        plane.processes.start(Component("volumes", itself("recycle", folder)))
        plane.processes.wait_ready()
        report.lap("node components")
        _wait_until(lambda: _is_registered(kubectl), plane.processes)
        plane.processes.start(node.policy_engine(plane, programs))
        _wait_until(lambda: _is_serving(kubectl), plane.processes)
        plane.processes.wait_ready()
        if options.gpus:
            _pretend_gpus(kubectl, options.gpus)
        report.lap("node and DNS ready")
        report.ready()
        report.watch()


def itself(command: str, folder: Folder) -> list[str]:
    return [sys.executable, "-m", "clotho_dev.cluster", command, "--name", folder.name]


def _prepare_namespaces(folder: Folder) -> None:
    """Nothing here is visible outside the namespaces."""
    state = folder.path
    _do("mount", "-t", "tmpfs", "tmpfs", "/run")
    for layer in (upper := Path("/run/var-lib"), work := Path("/run/var-lib-work")):
        layer.mkdir()
    # The network plugins insist on writing below /var/lib.
    _do("mount", "-t", "overlay", "-o", f"lowerdir=/var/lib,upperdir={upper},workdir={work}", "overlay", "/var/lib")
    (state / "var-log").mkdir(exist_ok=True)
    _do("mount", "--bind", str(state / "var-log"), "/var/log")
    _do("mount", "--bind", str(state), str(state))
    _do("mount", "--make-shared", str(state))  # the kubelet's mounts below it must reach the containers
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "address", "add", f"{node.NODE_ADDRESS}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bridged = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not bridged.exists():
        subprocess.run(["modprobe", "br_netfilter"], check=False, capture_output=True)
    try:
        bridged.write_text("1")  # else pods on one bridge talk past the network policies
    except OSError as error:
        raise ClusterError(
            f"the kernel has no br_netfilter ({error.strerror}): network policies could not hold"
        ) from error


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")


def _wait_until(done: Callable[[], bool], processes: Processes, timeout: float = 90.0) -> None:
    deadline = time.monotonic() + timeout
    while not done():
        processes.raise_if_dead()
        if time.monotonic() > deadline:
            raise ClusterError(f"the node did not become ready in {timeout:.0f} s; see {processes.logs}/kubelet.log")
        time.sleep(0.1)


def _is_registered(kubectl: Kubectl) -> bool:
    return any(item.get("status", {}).get("addresses") for item in kubectl.get("nodes")["items"])


def _is_serving(kubectl: Kubectl) -> bool:
    """Pods can be scheduled, and names resolve."""
    nodes = kubectl.get("nodes")["items"]
    dns = kubectl.in_namespace("kube-system").get("deployment/coredns")
    return _is_ready(nodes[0]) and dns.get("status", {}).get("readyReplicas", 0) > 0


def _is_ready(item: dict[str, dict[str, list[dict[str, str]]]]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in item.get("status", {}).get("conditions", []))


def _pretend_gpus(kubectl: Kubectl, count: int) -> None:
    amounts = f'{{"nvidia.com/gpu": "{count}"}}'
    patch = f'{{"status": {{"capacity": {amounts}, "allocatable": {amounts}}}}}'
    kubectl.run("patch", "node", node.NODE_NAME, "--subresource=status", "--type=merge", f"--patch={patch}")


class _reporting:  # noqa: N801 - reads as a statement at its place of use
    """Records the state of the cluster for `up` and `status`."""

    def __init__(self, folder: Folder, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        self.started = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.phase, self.message = "starting", ""

    def __enter__(self) -> _reporting:
        self._publish()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ClusterError):
            self.phase, self.message = "failed", str(error)
            self._publish()
        self.processes.stop()

    def lap(self, title: str) -> None:
        self.seconds[title] = round(time.monotonic() - self.started - sum(self.seconds.values()), 2)
        self._publish()

    def ready(self) -> None:
        self.seconds["total"] = round(time.monotonic() - self.started, 2)
        self.phase = "ready"
        self._publish()

    def watch(self) -> None:
        """Until a signal comes; a component that dies is named, the others keep running, for inspection."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        while True:
            time.sleep(WATCH_SECONDS)
            _reap_orphans({entry.process.pid for entry in self.processes.running})
            try:
                self.processes.raise_if_dead()
            except ClusterError as error:
                if self.message != str(error):
                    self.phase, self.message = "failed", str(error)
                    self._publish()

    def _publish(self) -> None:
        components = tuple(
            ComponentState(entry.component.name, entry.process.poll() is None, entry.ready_after)
            for entry in self.processes.running
        )
        self.folder.write_state(ClusterState(self.phase, self.message, components, self.seconds))


def _reap_orphans(own: set[int]) -> None:
    """Containers' helpers end up as children of the first process; our own are left to their Popen objects."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, 0)
