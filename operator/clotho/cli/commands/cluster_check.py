"""`check --cluster`: whether nodes, storage, images, network and clocks are ready for a first run."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from typing import Final

from clotho.api.crd import crd
from clotho.api.definitions import DEFINITIONS, Definition
from clotho.cli.commands.version import own_version
from clotho.cli.session.installation import RUN_IMAGES, operator_deployment, operator_variables
from clotho.cli.session.probe_pods import ProbeImages, probe
from clotho.cluster.client import Object
from clotho.cluster.outcomes import ApiError
from clotho.workspace import findings as found
from clotho.workspace.findings import Finding
from clotho.workspace.objects import Workspace

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_PULL_SECRETS: Final = "CLOTHO_IMAGES_PULL_SECRETS"
_PULL_POLICY: Final = "CLOTHO_IMAGES_PULL_POLICY"


async def findings(options: argparse.Namespace, workspace: Workspace) -> AsyncIterator[Finding]:
    operator = await operator_deployment(workspace, options.operator_namespace)
    version = operator.get("metadata", {}).get("labels", {}).get("app.kubernetes.io/version", "")
    yield found.version_finding(own_version(), version)
    for definition in DEFINITIONS:
        yield await _asked(f"CRD {definition.kind}", _schema(workspace, definition))
    yield await _asked("GPUs", _gpus(workspace, options.gpu_resource))
    yield await _asked("storage", _storage(workspace))
    yield await _asked("Pod Security", _pod_security(workspace))
    for each in await _clocks(workspace):
        yield each
    if options.no_pods:
        return
    images = _images(operator, options.images or ())
    if not images.all:
        detail = f"the operator's Deployment in namespace {options.operator_namespace} was not found"
        fix = "name the images with --image, the first one with Python in it"
        yield Finding(what="images and NetworkPolicies", state="unknown", detail=detail, fix=fix)
        return
    async for each in probe(workspace, images):
        yield each


async def _asked(what: str, answer: Awaitable[Finding]) -> Finding:
    """What may not be read stays unknown."""
    try:
        return await answer
    except ApiError as error:
        return Finding(what=what, state="unknown", detail=error.message)


async def _schema(workspace: Workspace, definition: Definition) -> Finding:
    ours = crd(definition)
    installed = await workspace.client.get(f"{CRDS}/{ours['metadata']['name']}", Object)
    return found.schema_finding(definition.kind, _spec_schema(ours), _spec_schema(installed))


def _spec_schema(body: Object) -> Object:
    schema: Object = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


async def _gpus(workspace: Workspace, resource: str) -> Finding:
    nodes = (await workspace.client.list("/api/v1/nodes", Object, {})).get("items") or []
    pods = (await workspace.client.list("/api/v1/pods", Object, {})).get("items") or []
    return found.gpu_finding(resource, nodes, pods)


async def _storage(workspace: Workspace) -> Finding:
    classes = await workspace.client.list("/apis/storage.k8s.io/v1/storageclasses", Object, {})
    return found.storage_finding(classes.get("items") or [])


async def _pod_security(workspace: Workspace) -> Finding:
    namespace = await workspace.client.get(f"/api/v1/namespaces/{workspace.namespace}", Object)
    return found.pod_security_finding(workspace.namespace, namespace["metadata"].get("labels") or {})


async def _clocks(workspace: Workspace) -> list[Finding]:
    """The API server puts its time into an object that it is asked to create, and does not (a dry run)."""
    name = f"clotho-check-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    sent = datetime.now(UTC)
    try:
        made = await workspace.client.create(workspace.core("configmaps"), body, Object, dryRun="All")
        received = datetime.now(UTC)
        server = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    except (ApiError, KeyError) as error:
        return [Finding(what="clocks", state="unknown", detail=getattr(error, "message", str(error)))]
    return [
        found.server_clock_finding(server, sent, received),
        await _asked("clocks of nodes", _node_clocks(workspace, server)),
    ]


async def _node_clocks(workspace: Workspace, server: datetime) -> Finding:
    leases = (await workspace.client.list(LEASES, Object, {})).get("items") or []
    renewed = {each["metadata"]["name"]: datetime.fromisoformat(each["spec"]["renewTime"]) for each in leases}
    return found.node_clock_finding(renewed, server)


def _images(operator: Object, given: list[str] | tuple[str, ...]) -> ProbeImages:
    """Those that the operator gives to the pods of runs, as it pulls them."""
    variables = operator_variables(operator)
    secrets = tuple(each for each in variables.get(_PULL_SECRETS, "").split(",") if each)
    images = tuple(given) or tuple(variables[name] for name in RUN_IMAGES if variables.get(name))
    return ProbeImages(all=images, pull_policy=variables.get(_PULL_POLICY) or "IfNotPresent", pull_secrets=secrets)
