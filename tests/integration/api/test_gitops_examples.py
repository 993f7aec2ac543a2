"""The examples for Argo CD and Flux against the CRDs of both, which come from the Go module proxy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho_dev.cluster import crds as other_crds
from clotho_dev.cluster.kubectl import Kubectl, KubectlError
from rig import go_modules

EXAMPLES = Path(__file__).parents[3] / "examples" / "gitops"
CRDS = {  # of the newest versions that our Go can fetch
    "github.com/argoproj/argo-cd/v3@v3.5.6": "manifests/crds/application-crd.yaml",
    "github.com/fluxcd/source-controller@v1.9.6": "config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",
    "github.com/fluxcd/kustomize-controller@v1.9.6": (
        "config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml"
    ),
}
NAMESPACES = ("argocd", "flux-system", "training")  # that the examples name


@pytest.fixture(scope="module")
def gitops(crds: None, kubectl: Kubectl) -> Iterator[None]:
    files = [go_modules.fetch(module) / path for module, path in CRDS.items()]
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in NAMESPACES])
    other_crds.install(kubectl, files)
    yield
    other_crds.remove(kubectl, files)
    kubectl.run("delete", "namespace", *NAMESPACES, "--wait=false")


def check(kubectl: Kubectl, objects: str) -> None:
    kubectl.run("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-", stdin=objects)


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))


@pytest.mark.usefixtures("gitops")
@pytest.mark.parametrize("name", ["argocd", "flux"])
def test_example_matches_the_crds(kubectl: Kubectl, name: str) -> None:
    objects = read(name)
    check(kubectl, yaml.safe_dump_all(objects))
    objects[-1]["spec"]["destinatoin"] = {}
    with pytest.raises(KubectlError, match="destinatoin"):
        check(kubectl, yaml.safe_dump_all(objects))


@pytest.mark.usefixtures("gitops")
def test_both_apply_the_folder_with_the_run(kubectl: Kubectl) -> None:
    """What Flux, and Argo CD where it finds a kustomization, make of the folder that both examples name."""
    (application,), (_, kustomization) = read("argocd"), read("flux")
    folder = EXAMPLES / "run"
    named = application["spec"]["source"]["path"], kustomization["spec"]["path"].removeprefix("./")
    assert {str(folder).endswith(f"/{path}") for path in named} == {True}
    built = kubectl.run("kustomize", str(folder))
    namespace = yaml.safe_load(built)["metadata"]["namespace"]
    assert namespace == application["spec"]["destination"]["namespace"] == kustomization["spec"]["targetNamespace"]
    check(kubectl, built)
