"""A stolen token of the operator: what it must not open on a real API server, tried one by one."""

from pathlib import Path
from typing import Any

import pytest

from clotho.cluster.client import ApiClient
from clotho.cluster.kubeconfig import from_kubeconfig
from clotho.cluster.outcomes import ApiError, Forbidden
from rig.cluster_access import Body
from rig.pods import python_pod

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMIN = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]


def attempts(namespace: str, account: str) -> dict[str, tuple[str, str, Body]]:
    """What, verb, path and body; `{}` as a body where none is needed."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    binding: Body = {"metadata": {"name": "taken"}, "roleRef": ADMIN, "subjects": [subject]}
    core, role = f"/api/v1/namespaces/{namespace}", {"metadata": {"name": "taken"}, "rules": EVERYTHING}
    review = {"spec": {"audiences": []}}
    return {
        "bind cluster-admin": ("create", f"{RBAC}/clusterrolebindings", binding),
        "bind cluster-admin in the namespace": ("create", f"{RBAC}/namespaces/{namespace}/rolebindings", binding),
        "create a role": ("create", f"{RBAC}/clusterroles", role),
        "change the own role": ("patch", f"{RBAC}/clusterroles/{account}", {"rules": EVERYTHING}),
        "list secrets": ("list", f"{core}/secrets", {}),
        "list secrets of the cluster": ("list", "/api/v1/secrets", {}),
        "watch secrets": ("list", f"{core}/secrets?watch=true&timeoutSeconds=1", {}),
        "delete all secrets": ("delete", f"{core}/secrets", {}),
        "mint a token": ("create", f"{core}/serviceaccounts/default/token", review),
        "create a service account": ("create", f"{core}/serviceaccounts", {"metadata": {"name": "taken"}}),
        "execute in a pod": ("create", f"{core}/pods/any/exec?command=id&stdout=true", {}),
        "attach to a pod": ("create", f"{core}/pods/any/attach?stdout=true", {}),
        "add a container to a pod": ("patch", f"{core}/pods/any/ephemeralcontainers", {"spec": {}}),
        "forge a pod's status": ("patch", f"{core}/pods/any/status", {"status": {"phase": "Running"}}),
        "proxy to a node": ("list", "/api/v1/nodes/any/proxy/configz", {}),
        "change a node": ("patch", "/api/v1/nodes/any", {"metadata": {"labels": {"taken": "true"}}}),
        "create a namespace": ("create", "/api/v1/namespaces", {"metadata": {"name": "taken"}}),
        "open a namespace": ("patch", f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"taken": "true"}}}),
        "loosen the CRD": (
            "patch",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingruns.clotho.dev",
            {"metadata": {"labels": {"taken": "true"}}},
        ),
        "register a webhook": (
            "create",
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            {"metadata": {"name": "taken"}, "webhooks": []},
        ),
        "delete an admission policy": (
            "delete",
            f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{account}",
            {},
        ),
        "start a DaemonSet": (
            "create",
            f"/apis/apps/v1/namespaces/{namespace}/daemonsets",
            {"metadata": {"name": "x"}},
        ),
        "sign a certificate": (
            "create",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            {"metadata": {"name": "taken"}, "spec": {"request": "", "signerName": "a.example/b", "usages": ["any"]}},
        ),
        "start a privileged pod": ("create", f"{core}/pods", privileged_pod()),
    }


OUTSIDE = {  # of an operator that is restricted to namespaces
    "read a Secret elsewhere": ("get", "/api/v1/namespaces/kube-system/secrets/any", {}),
    "read a ConfigMap elsewhere": ("get", "/api/v1/namespaces/kube-system/configmaps/any", {}),
    "list runs elsewhere": ("list", "/apis/clotho.dev/v1alpha1/trainingruns", {}),
    "start a pod elsewhere": ("create", "/api/v1/namespaces/kube-system/pods", {"metadata": {"name": "taken"}}),
}


def privileged_pod() -> Body:
    pod = python_pod("taken", "image", "")
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    return {"apiVersion": "v1", **pod, "spec": {**pod["spec"], "hostPID": True}}


@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
async def test_token_of_the_operator_opens_nothing_else(
    mode: str, install_chart: Any, namespace: str, tmp_path: Path
) -> None:
    installed = install_chart(*([f"runs.namespaces={{{namespace}}}"] if mode == "namespaced" else []))
    tried = attempts(namespace, installed.namespace) | (OUTSIDE if mode == "namespaced" else {})
    opened = []
    async with ApiClient(from_kubeconfig(installed.write_kubeconfig(tmp_path / "stolen.kubeconfig"))) as client:
        for what, (verb, path, body) in tried.items():
            try:
                await send(client, verb, path, body)
            except Forbidden:
                continue
            except ApiError as error:
                opened.append(f"{what}: {error}")
            else:
                opened.append(what)
    assert opened == []


async def send(client: ApiClient, verb: str, path: str, body: Body) -> None:
    match verb:
        case "create":
            await client.create(path, body, Body)
        case "patch":
            await client.patch(path, body, Body, "application/merge-patch+json")
        case "delete":
            await client.delete(path, body, Body)
        case "list":
            await client.list(path, Body, {})
        case _:
            await client.get(path, Body)
