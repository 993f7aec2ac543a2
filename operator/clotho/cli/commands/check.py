"""`check`: what a user needs to work with this cluster, each with how to get it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Raw, Struct, field

from clotho.api.names import GROUP, VERSION
from clotho.cli.commands import cluster_check
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.connection import run_connected
from clotho.cli.terminal import output
from clotho.cluster.credentials import CredentialsError
from clotho.cluster.outcomes import ApiError, Forbidden, NotFound
from clotho.workspace.findings import Finding, State
from clotho.workspace.objects import PLURALS, Workspace

BAD: Final = ("missing", "problem")
OLDEST_PYTHON: Final = (3, 11)
FRESH_SECONDS: Final = 120  # far more than the lease is renewed, for clocks that differ
OURS: Final = ("trainingruns", "environments", "inferencetests")
PERMISSIONS: Final = (
    *((GROUP, plural, verb) for plural in OURS for verb in ("get", "list", "create", "patch", "delete")),
    (GROUP, "trainingpolicies", "list"),
    ("", "pods", "list"),
    ("", "pods/log", "get"),
)
DOWNLOAD_PERMISSIONS: Final = (("", "pods", "create"), ("", "pods/exec", "create"), ("", "pods", "delete"))
INSTALL: Final = "helm install clotho charts/clotho --namespace clotho-system --create-namespace"


def check(options: argparse.Namespace) -> int:
    """Without a kubeconfig, that is what is missing; other commands end there."""
    try:
        return run_connected(check_cluster, options)
    except Failure as failure:
        if failure.code != Exit.UNREACHABLE:
            raise
        fix = "get a kubeconfig from the cluster's administrator, or start a cluster on this machine with `make demo`"
        return _report(options, [Finding(what="cluster", state="missing", detail=str(failure), fix=fix)])


async def check_cluster(options: argparse.Namespace, workspace: Workspace) -> int:
    findings = [finding async for finding in _cluster_findings(options, workspace)]
    if options.cluster and all(finding.what != "cluster" or finding.state == "ok" for finding in findings):
        findings += [finding async for finding in cluster_check.findings(options, workspace)]
    return _report(options, findings)


def _report(options: argparse.Namespace, of_cluster: list[Finding]) -> int:
    findings = [python_finding(sys.version_info[:3]), *of_cluster]
    data = [{"what": f.what, "state": f.state, "detail": f.detail, "fix": f.fix} for f in findings]
    output.show(options.output, data, list(lines(findings)))
    return Exit.UNSUCCESSFUL if any(finding.state in BAD for finding in findings) else Exit.OK


def lines(findings: list[Finding]) -> Iterator[str]:
    marks = {
        "ok": "ok",
        "missing": "MISSING",
        "problem": "PROBLEM",
        "warning": "warning",
        "optional": "-",
        "unknown": "?",
    }
    for finding in findings:
        yield f"{marks[finding.state]:8}{finding.what}" + (f": {finding.detail}" if finding.detail else "")
        if finding.fix:
            yield f"{'':8}  to fix: {finding.fix}"


def python_finding(version: tuple[int, ...]) -> Finding:
    found = ".".join(map(str, version))
    if version[:2] >= OLDEST_PYTHON:
        return Finding(what="Python", state="ok", detail=found)
    return Finding(what="Python", state="missing", detail=f"{found} is too old", fix="install Python 3.11 or newer")


async def _cluster_findings(options: argparse.Namespace, workspace: Workspace) -> AsyncIterator[Finding]:
    try:
        version = await workspace.client.get("/version", dict[str, Any])
    except (ApiError, CredentialsError) as error:
        fix = "choose another --kubeconfig or --context, or start the cluster"
        yield Finding(what="cluster", state="missing", detail=getattr(error, "message", str(error)), fix=fix)
        return
    yield Finding(what="cluster", state="ok", detail=f"Kubernetes {version.get('gitVersion', '')}")
    yield await _kinds(workspace)
    yield await _operator(workspace, options.operator_namespace)
    yield await _namespace(workspace)
    yield await _permissions(workspace, "permissions", PERMISSIONS, "missing")
    yield await _permissions(workspace, "permissions for run download", DOWNLOAD_PERMISSIONS, "optional")
    yield await _key(workspace, options.wandb_secret, "WANDB_API_KEY", "for Weights & Biases; runs work without it")
    yield await _key(workspace, options.tinker_secret, "TINKER_API_KEY", "for training.backend tinker only")


async def _kinds(workspace: Workspace) -> Finding:
    try:
        served = await workspace.client.get(f"/apis/{GROUP}/{VERSION}", dict[str, Any])
        there = {each["name"] for each in served.get("resources", ())}
    except NotFound:
        there = set()
    except ApiError as error:
        return Finding(what="custom resources", state="unknown", detail=error.message)
    absent = sorted(set(PLURALS.values()) - there)
    if not absent:
        return Finding(what="custom resources", state="ok", detail=", ".join(PLURALS))
    return Finding(what="custom resources", state="missing", detail=", ".join(absent), fix=f"{INSTALL} (or upgrade it)")


async def _operator(workspace: Workspace, namespace: str) -> Finding:
    """The leader renews a Lease every few seconds."""
    where = f"namespace {namespace}"
    try:
        page = await workspace.client.list(
            f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", dict[str, Any], {}
        )
    except Forbidden:
        detail = f"no permission to list the leases of {where}; without an operator, runs stay Pending"
        return Finding(what="operator", state="unknown", detail=detail)
    except ApiError as error:
        return Finding(what="operator", state="unknown", detail=error.message)
    renewed = [
        datetime.fromisoformat(lease["spec"]["renewTime"])
        for lease in page.get("items") or ()
        if "clotho" in lease["metadata"]["name"] and lease["spec"].get("renewTime")
    ]
    if not renewed:
        fix = f"{INSTALL}; or name its namespace with --operator-namespace"
        return Finding(what="operator", state="missing", detail=f"none in {where}", fix=fix)
    silence = (datetime.now(UTC) - max(renewed)).total_seconds()
    if silence > FRESH_SECONDS:
        fix = f"kubectl get pods --namespace {namespace}"
        detail = f"its lease has not been renewed for {silence:.0f} s"
        return Finding(what="operator", state="missing", detail=detail, fix=fix)
    return Finding(what="operator", state="ok", detail=f"running in {where}")


async def _namespace(workspace: Workspace) -> Finding:
    name = workspace.namespace
    try:
        await workspace.client.get(f"/api/v1/namespaces/{name}", dict[str, Any])
    except NotFound:
        return Finding(what="namespace", state="missing", detail=name, fix=f"kubectl create namespace {name}")
    except ApiError:
        return Finding(what="namespace", state="unknown", detail=f"{name}: no permission to read it")
    return Finding(what="namespace", state="ok", detail=name)


async def _permissions(
    workspace: Workspace, what: str, required: tuple[tuple[str, str, str], ...], otherwise: State
) -> Finding:
    refused = []
    for group, resource, verb in required:
        plural, _, subresource = resource.partition("/")
        asked = {"namespace": workspace.namespace, "group": group, "resource": plural, "verb": verb}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked | ({"subresource": subresource} if subresource else {})},
        }
        try:
            answer = await workspace.client.create(
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, dict[str, Any]
            )
        except ApiError as error:
            return Finding(what=what, state="unknown", detail=error.message)
        if not answer.get("status", {}).get("allowed"):
            refused.append(f"{verb} {resource}")
    if not refused:
        return Finding(what=what, state="ok", detail=f"all {len(required)} in {workspace.namespace}")
    fix = f"ask an administrator to bind the ClusterRole edit to you in namespace {workspace.namespace}"
    return Finding(what=what, state=otherwise, detail=f"not allowed: {', '.join(refused)}", fix=fix)


class _KeysOnly(Struct, frozen=True):
    """A Secret whose values are never decoded."""

    data: dict[str, Raw] = field(default_factory=dict)


async def _key(workspace: Workspace, secret: str, key: str, purpose: str) -> Finding:
    fix = f"kubectl create secret generic {secret} -n {workspace.namespace} --from-file={key}=FILE"
    try:
        found = await workspace.client.get(workspace.core(f"secrets/{secret}"), _KeysOnly)
    except NotFound:
        return Finding(what=key, state="optional", detail=f"no Secret {secret}; {purpose}", fix=fix)
    except ApiError:
        return Finding(what=key, state="unknown", detail=f"no permission to read Secret {secret}")
    if key not in found.data:
        return Finding(what=key, state="optional", detail=f"Secret {secret} has no key {key}; {purpose}", fix=fix)
    return Finding(what=key, state="ok", detail=f"in Secret {secret}")
