"""The components of a real node beside the control plane: containerd, kubelet, kube-proxy and the policy engine."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from clotho_dev.cluster import cgroups, disk, oci
from clotho_dev.cluster.control_plane import LOOPBACK, SERVICE_RANGE, ControlPlane, answers
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.packages import CNI_FOLDER
from clotho_dev.cluster.process import Component
from clotho_dev.cluster.state import Folder

NODE_NAME = "clotho"
NODE_ADDRESS = "10.240.0.2"
POD_RANGE = "10.244.0.0/16"
DNS_ADDRESS = "10.96.0.10"
PAUSE_IMAGE = "localhost/clotho-dev/pause:1"
COREDNS_IMAGE = "localhost/clotho-dev/coredns:1"
PROGRAMS = ("kubelet", "kube-proxy", "network-policy", "coredns", "pause")
NAMESPACE_IMAGES = "k8s.io"  # where the kubelet looks for images in containerd


def containerd(folder: Folder) -> Component:
    runc = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc'
    config = f"""
version = 2
root = "{folder.containerd_root}"
state = "/run/containerd-state"
[grpc]
address = "{folder.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter(folder)}"
default_runtime_name = "runc"
[{runc}]
runtime_type = "io.containerd.runc.v2"
[{runc}.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_FOLDER}"
conf_dir = "{folder.path / "cni"}"
"""
    folder.containerd_config.write_text(config)
    _write_network(folder)
    return Component("containerd", ["containerd", f"--config={folder.containerd_config}"], lambda: _ctr_works(folder))


def snapshotter(folder: Folder) -> str:
    """Overlay does not stack on overlay: inside a container, whole copies take its place."""
    folder.containerd_root.mkdir(parents=True, exist_ok=True)
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(folder.containerd_root)],
        capture_output=True,
        text=True,
        check=True,
    )
    return "native" if "overlay" in kind.stdout else "overlayfs"


def _write_network(folder: Folder) -> None:
    network = {
        "cniVersion": "1.0.0",
        "name": "clotho",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "clotho0",
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": POD_RANGE}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": str(folder.path / "addresses"),
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
    (folder.path / "cni").mkdir(exist_ok=True)
    (folder.path / "cni" / "10-clotho.conflist").write_text(json.dumps(network))


def ctr(folder: Folder, *arguments: str, timeout: float = 600) -> str:
    argv = ["ctr", f"--address={folder.containerd_socket}", f"--namespace={NAMESPACE_IMAGES}", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise _ctr_error(arguments[0], done.stderr.strip())
    return done.stdout


def _ctr_error(command: str, error: str) -> ClusterError:
    return ClusterError(disk.FULL if disk.is_full([error]) else f"ctr {command}: {error}")


def import_archive(folder: Folder, archive: bytes, *flags: str) -> None:
    with tempfile.NamedTemporaryFile(dir=folder.path, suffix=".tar") as file:
        file.write(archive)
        file.flush()
        ctr(folder, "images", "import", *flags, file.name)


def remove_images(folder: Folder, is_unwanted: Callable[[str], bool]) -> None:
    """Also the nameless twin that the kubelet's side keeps of each image, which would hold on to its layers."""
    rows = [line.split() for line in ctr(folder, "images", "list").splitlines()[1:]]
    kept = {row[2] for row in rows if not row[0].startswith("sha256:") and not is_unwanted(row[0])}
    unwanted = [row[0] for row in rows if is_unwanted(row[0]) or (row[0].startswith("sha256:") and row[2] not in kept)]
    if unwanted:
        ctr(folder, "images", "remove", "--sync", *unwanted)


def _ctr_works(folder: Folder) -> bool:
    try:
        ctr(folder, "version", timeout=5)
    except (ClusterError, subprocess.TimeoutExpired):
        return False
    return True


def forget_old_containers(folder: Folder) -> None:
    """Images outlive a cluster, its containers must not."""
    if old := ctr(folder, "containers", "list", "--quiet").split():
        ctr(folder, "containers", "delete", *old)


def import_own_images(folder: Folder, programs: Mapping[str, Path]) -> None:
    present = set(ctr(folder, "images", "list", "--quiet").split())
    for tag, program in ((PAUSE_IMAGE, programs["pause"]), (COREDNS_IMAGE, programs["coredns"])):
        marked = f"{tag}-{program.resolve().parent.name}"  # another build, another image
        if marked in present and tag in present:
            continue
        import_archive(folder, oci.archive_of_program(program, tag))
        ctr(folder, "images", "tag", "--force", tag, marked)


def kubelet(folder: Folder, plane: ControlPlane, programs: Mapping[str, Path]) -> Component:
    kubeconfig = plane.write_kubeconfig("kubelet.kubeconfig", f"system:node:{NODE_NAME}", ["system:nodes"])
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plane.authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.root_of(folder.name),
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "containerRuntimeEndpoint": f"unix://{folder.containerd_socket}",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder.path / "resolv.conf"),
        "podLogsDir": str(folder.logs / "pods"),
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,  # images are imported, not pulled: none may be thrown away
        "imageMinimumGCAge": "24h",
        "maxPods": 250,
        "readOnlyPort": 0,
        "volumePluginDir": str(folder.path / "volume-plugins"),
    }
    path = folder.path / "kubelet.yaml"
    path.write_text(yaml.safe_dump(config))
    argv = [
        str(programs["kubelet"]),
        f"--config={path}",
        f"--kubeconfig={kubeconfig}",
        f"--root-dir={folder.path / 'kubelet'}",
        f"--cert-dir={folder.path / 'pki'}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_ADDRESS}",
    ]
    return Component("kubelet", argv, lambda: answers(f"http://{LOOPBACK}:10248/healthz"))


def kube_proxy(folder: Folder, plane: ControlPlane, programs: Mapping[str, Path]) -> Component:
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": NODE_NAME,
        "clientConnection": {"kubeconfig": str(plane.write_kubeconfig("proxy.kubeconfig", "system:kube-proxy"))},
        "conntrack": {"maxPerCore": 0, "min": 0},  # a virtual machine may not let us change its limits
        "healthzBindAddress": f"{LOOPBACK}:10256",
        "metricsBindAddress": f"{LOOPBACK}:10249",
        "nftables": {"minSyncPeriod": "0.2s"},
    }
    path = folder.path / "kube-proxy.yaml"
    path.write_text(yaml.safe_dump(config))
    argv = [str(programs["kube-proxy"]), f"--config={path}"]
    return Component("kube-proxy", argv, lambda: answers(f"http://{LOOPBACK}:10256/healthz"))


def policy_engine(plane: ControlPlane, programs: Mapping[str, Path]) -> Component:
    """kube-router's NetworkPolicy controller."""
    kubeconfig = plane.write_kubeconfig("policy.kubeconfig", "clotho-policy-engine", ["system:masters"])
    argv = [
        str(programs["network-policy"]),
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={NODE_NAME}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--health-addr={LOOPBACK}",
        "--health-port=20244",
    ]
    return Component("network-policy", argv, lambda: answers(f"http://{LOOPBACK}:20244/healthz"))


def require_short_socket_path(folder: Folder) -> None:
    if len(f"{folder.containerd_socket}.ttrpc".encode()) > 104:  # containerd's second socket, beside it
        raise ClusterError(
            f"{folder.containerd_socket} is too long for a socket: point XDG_STATE_HOME at a folder with a shorter path"
        )
