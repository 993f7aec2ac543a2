"""`make demo`: a cluster, the operator, one TrainingRun, and a live view until the policy has learned."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clotho.api.names import RUN_LABEL
from clotho.cli.terminal import view
from clotho.cli.terminal.screen import Screen, terminal_width
from clotho.workspace.progress import rewards_of
from clotho_dev import REPOSITORY
from clotho_dev.cluster import binaries, chart, disk, embedded, packages, target
from clotho_dev.cluster import images as cluster_images
from clotho_dev.cluster.background import BackgroundBuild
from clotho_dev.cluster.console import overall, say
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.kubectl import Kubectl, KubectlError

EXAMPLE = REPOSITORY / "examples" / "cpu-quickstart" / "letters.yaml"
RUN = "letters"
NAMESPACE = "clotho-demo"
EVERY_SECOND = {"reconcile": {"progressSeconds": 1}, "probe": {"intervalSeconds": 1, "startupSeconds": 1}}
LIMIT_SECONDS = 900
FIRST_RUN_MINUTES = 15
FIRST_RUN_GIBIBYTES = 24
REFRESH_SECONDS = 1.0


def main() -> int:
    chosen = target.choose(os.environ.get("CLUSTER"))
    found_running = chosen.name != "embedded" or target.Embedded().folder.daemon() is not None
    kubectl = None
    try:
        if chosen.name == "embedded":
            prepare()
        kubeconfig = chosen.up()
        kubectl = Kubectl(binaries.find(["kubectl"])["kubectl"], kubeconfig)
        namespaces = [NAMESPACE] if chosen.name == "current" else []  # a cluster of others: no rights beyond the demo's
        if namespaces:
            chart.require_own(kubeconfig, namespaces)
        images = chosen.provide_images(cluster_images.NAMES)
        create_namespace(kubectl)
        chart.install(kubeconfig, images, EVERY_SECOND, {"namespaces": namespaces})
        start_run(kubectl.in_namespace(NAMESPACE))
        run = watch(kubectl.in_namespace(NAMESPACE))
    except KeyboardInterrupt:
        say("\nStopping and cleaning up ...")
        clean_up(chosen, found_running, kubectl)
        return 130
    print_results(run, kubeconfig, chosen.name)
    return 0 if run["status"]["phase"] == "Completed" else 1


def prepare() -> None:
    """The first time: everything that takes minutes, at once, before the cluster starts."""
    programs = [*embedded.node_programs(), "helm"]
    if binaries.are_present(programs):
        return
    overall.begin(FIRST_RUN_MINUTES)
    say(f"First run on this machine: about {FIRST_RUN_MINUTES} minutes on two cores, mostly for Kubernetes and torch.")
    packages.require_root("the embedded cluster")
    disk.require_room(binaries.cache_folder(), "the first demo", FIRST_RUN_GIBIBYTES)
    packages.require(packages.NODE, packages.IMAGES, packages.DEBIAN_BASE)
    building = BackgroundBuild()
    binaries.find(programs)
    building.wait()


def create_namespace(kubectl: Kubectl) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})


def start_run(kubectl: Kubectl) -> None:
    remove_run(kubectl)
    say(f"kubectl apply -n {NAMESPACE} -f {EXAMPLE.relative_to(REPOSITORY)}\n")
    kubectl.apply(EXAMPLE.read_text())


def remove_run(kubectl: Kubectl) -> None:
    """With its claim. The namespace stays: other runs may be there, and its deletion waits for pods' grace periods."""
    kubectl.run("delete", "trainingrun", RUN, "--ignore-not-found", "--timeout=60s", timeout=70)
    kubectl.run("delete", "pvc", f"--selector={RUN_LABEL}={RUN}", "--timeout=60s", timeout=70)


def watch(kubectl: Kubectl) -> dict[str, Any]:
    """Until it has finished, or for too long."""
    started = time.monotonic()
    rewards: dict[int, float] = {}
    screen = Screen(sys.stdout)
    while True:
        run = kubectl.get(f"trainingrun/{RUN}")
        elapsed = time.monotonic() - started
        rewards |= rewards_of(run)
        lines = view.watch_view(run, rewards, elapsed, terminal_width())
        screen.show(lines)
        if view.is_finished(run):
            return run
        if elapsed > LIMIT_SECONDS:
            raise ClusterError(f"the run is not finished after {LIMIT_SECONDS} s; {lines[1]}")
        time.sleep(REFRESH_SECONDS)


def print_results(run: Mapping[str, Any], kubeconfig: Path, cluster: str) -> None:
    print("\n" + "\n".join(view.results_view(run)))
    print(f"""
Next:
{path_hint()}{kubeconfig_hint(cluster, kubeconfig)}  kubectl get trainingruns -A
  kubectl describe trainingrun {RUN} -n {NAMESPACE}
  pip install .      # the command line: clotho run list -A, clotho run samples, clotho ui
  clotho run logs {RUN} -n {NAMESPACE}
Clean up:
{clean_up_hint(cluster)}""")


def kubeconfig_hint(cluster: str, kubeconfig: Path) -> str:
    """Empty where kubectl uses that cluster anyway."""
    return "" if cluster == "current" else f"  export KUBECONFIG={kubeconfig}\n"


def clean_up_hint(cluster: str) -> str:
    """In this order: the operator removes what the run has, and the chart keeps its CRDs."""
    by_cluster = {
        "embedded": ["make cluster-down"],
        "kind": ["CLUSTER=kind make cluster-down"],
        "current": [
            f"kubectl delete namespace {NAMESPACE}",
            f"helm uninstall {chart.RELEASE} --namespace {chart.NAMESPACE}",
            f"kubectl delete namespace {chart.NAMESPACE}",
            "kubectl delete -f crds      # with every TrainingRun in the cluster",
        ],
    }
    return "\n".join(f"  {line}" for line in by_cluster[cluster])


def path_hint() -> str:
    """A line that makes kubectl and helm available; empty where both are."""
    programs = {name: path for name, path in binaries.find(["kubectl", "helm"]).items() if shutil.which(name) is None}
    folders = ":".join(dict.fromkeys(str(path.parent) for path in programs.values()))
    return f"  export PATH={folders}:$PATH      # {' and '.join(programs)}\n" if programs else ""


def clean_up(chosen: target.Target, found_running: bool, kubectl: Kubectl | None) -> None:
    """Ctrl-C leaves the machine as it was; a cluster that was running before keeps running, without the run."""
    if not found_running:
        chosen.down()
        return
    if kubectl is not None:
        try:
            remove_run(kubectl.in_namespace(NAMESPACE))
        except KubectlError as error:
            say(f"failed to remove the run: {error}")
    say("The run was removed; the cluster keeps running.")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as problem:
        sys.exit(f"demo: {problem}")
