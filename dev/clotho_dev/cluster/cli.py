"""`python -m clotho_dev.cluster`: up, down, status and images. $CLUSTER chooses embedded, kind or current."""

from __future__ import annotations

import argparse
import errno
import os
import sys

from clotho_dev.cluster import (
    binaries,
    control_plane,
    daemon,
    disk,
    embedded,
    forward,
    images,
    kueue,
    node,
    registry,
    target,
    volumes,
)
from clotho_dev.cluster.control_plane import claim_port
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.state import DEFAULT_NAME, Folder, Options
from clotho_dev.ports import free_port

TOOLS = ("helm", "kwok", "kstatus")  # not part of a cluster, but the demo and the tests use them


def _images(chosen: target.Target, names: list[str], variants: str) -> None:
    known = (*images.NAMES, *images.PARENTS)
    if unknown := sorted(set(names) - set(known)):
        raise ClusterError(f"unknown image {', '.join(unknown)}; there are: {', '.join(known)}")
    for name, tag in chosen.provide_images(names or images.with_variants(variants)).items():
        print(f"{name}={tag}")


def _chosen(folder: Folder, options: Options | None = None) -> target.Target:
    chosen = target.choose(os.environ.get("CLUSTER"))
    return target.Embedded(folder, options) if chosen.name == "embedded" else chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help_text: str | None) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text) if help_text else commands.add_parser(name)
        sub.add_argument(
            "--name", default=DEFAULT_NAME, help=f"several clusters can run side by side (default: {DEFAULT_NAME})"
        )
        return sub

    start = command("up", "start a cluster, unless it is running")
    start.add_argument(
        "--profile", choices=["node", "control-plane"], default="node", help="node (root) runs real pods"
    )
    start.add_argument("--port", type=int, help="port of the API server on 127.0.0.1 (default: a free one)")
    start.add_argument("--gpus", type=int, default=0, metavar="N", help="pretend that the node has N nvidia.com/gpu")
    start.add_argument("--egress", action="store_true", help="let pods reach the outside, e.g. to pull models")
    start.add_argument("--audit", action="store_true", help="write the API server's audit log into the logs folder")
    command("down", "stop a cluster and remove everything it created")
    command("status", "show the components and their state")
    command("kubeconfig", "print the path of the kubeconfig")
    build = command("images", "build the images that changed and import them; prints their tags")
    build.add_argument(
        "images", nargs="*", metavar="IMAGE", help="operator, api-server, environment, trainer (default: all)"
    )
    build.add_argument(
        "--variants", default="", help="more than all of them: atropos, verifiers, tinker, vllm, by commas"
    )
    command("build", "build the images that changed, and import them where no cluster is running yet")
    prepare = command("prepare", "download or build the programs ahead of time")
    prepare.add_argument("--profile", choices=["node", "control-plane", "tests"], default="node")
    for internal in ("run-node", "run-control-plane", "recycle"):
        command(internal, None)
    for internal in ("inside", "forward"):
        command(internal, None).add_argument("--listener", type=int, required=True)
    return parser


def _dispatch(arguments: argparse.Namespace) -> None:
    folder = Folder(arguments.name)
    match arguments.command:
        case "up":
            _up(folder, arguments)
        case "down":
            _chosen(folder).down()
        case "status":
            sys.exit(embedded.status(folder))
        case "kubeconfig":
            print(folder.kubeconfig)
        case "images":
            _images(_chosen(folder), arguments.images, arguments.variants)
        case "build":
            _build_ahead(folder)
        case "prepare":
            _prepare(arguments.profile)
        case "run-control-plane":
            daemon.run_control_plane(folder)
        case "run-node":
            daemon.run_node(folder)
        case "inside":
            daemon.run_inside(folder, arguments.listener)
        case "forward":
            forward.serve(arguments.listener, daemon.API_SERVER_PORT)
        case "recycle":
            volumes.recycle(embedded.kubectl_for(folder, folder.inside_kubeconfig), folder.volumes)


def _build_ahead(folder: Folder) -> None:
    """Before the cluster starts, e.g. while its programs are compiled: it finds its images when it does."""
    images.build()
    with embedded.containerd_alone(folder) as is_free:
        if is_free:
            images.import_images(folder)


def _prepare(profile: str) -> None:
    if profile == "tests":  # what only tests run
        kueue.find()
        registry.find()
    else:
        binaries.find([*control_plane.PROGRAMS, *TOOLS, *(node.PROGRAMS if profile == "node" else [])])


def _up(folder: Folder, arguments: argparse.Namespace) -> None:
    port = claim_port(arguments.port) if arguments.port else free_port()
    options = Options(arguments.profile, port, arguments.gpus, arguments.egress, arguments.audit)
    if arguments.profile == "control-plane":  # needs neither root nor a choice
        embedded.up(folder, options)
    else:
        _chosen(folder, options).up()


def main() -> None:
    try:
        _dispatch(_parser().parse_args())
    except ClusterError as error:
        sys.exit(f"cluster: {error}")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(f"cluster: {disk.FULL}")
    except KeyboardInterrupt:
        sys.exit(130)
