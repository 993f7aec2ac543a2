"""`check`: what it takes to work here, each with what is missing and how to get it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

from msgspec import Raw, Struct, field

from clotho.api.names import GROUP, VERSION
from clotho.cli.failure import Exit
from clotho.cli.terminal import output
from clotho.cluster.credentials import CredentialsError
from clotho.cluster.outcomes import ApiError, Forbidden, NotFound
from clotho.workspace.objects import PLURALS, Workspace

State = Literal["ok", "missing", "optional", "unknown"]
OLDEST_PYTHON: Final = (3, 11)
FRESH_SECONDS: Final = 120  # clocks differ a little; a live operator renews every few seconds
OURS: Final = ("trainingruns", "environments", "inferencetests")
RIGHTS: Final = (
    *((GROUP, plural, verb) for plural in OURS for verb in ("get", "list", "create", "patch")),
    (GROUP, "inferencetests", "delete"),
    (GROUP, "trainingpolicies", "list"),
    ("", "pods", "list"),
    ("", "pods/log", "get"),
)
EXPORT_RIGHTS: Final = (("", "pods", "create"), ("", "pods/exec", "create"), ("", "pods", "delete"))
INSTALL: Final = "helm install clotho charts/clotho --namespace clotho-system --create-namespace"


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    what: str
    state: State
    told: str = ""
    fix: str = ""


async def check(options: argparse.Namespace, workspace: Workspace) -> int:
    findings = [python_finding(sys.version_info[:3])]
    findings += [finding async for finding in _cluster_findings(options, workspace)]
    data = [{"what": f.what, "state": f.state, "told": f.told, "fix": f.fix} for f in findings]
    output.show(options.output, data, list(lines(findings)))
    return Exit.UNSUCCESSFUL if any(finding.state == "missing" for finding in findings) else Exit.OK


def lines(findings: list[Finding]) -> Iterator[str]:
    marks = {"ok": "ok", "missing": "MISSING", "optional": "-", "unknown": "?"}
    for finding in findings:
        yield f"{marks[finding.state]:8}{finding.what}" + (f": {finding.told}" if finding.told else "")
        if finding.fix:
            yield f"{'':8}  to fix: {finding.fix}"


def python_finding(version: tuple[int, ...]) -> Finding:
    told = ".".join(map(str, version))
    if version[:2] >= OLDEST_PYTHON:
        return Finding(what="Python", state="ok", told=told)
    return Finding(what="Python", state="missing", told=f"{told} is too old", fix="install Python 3.11 or newer")


async def _cluster_findings(options: argparse.Namespace, workspace: Workspace) -> AsyncIterator[Finding]:
    try:
        version = await workspace.client.get("/version", dict[str, Any])
    except (ApiError, CredentialsError) as error:
        fix = "name another --kubeconfig or --context, or start the cluster"
        yield Finding(what="cluster", state="missing", told=getattr(error, "message", str(error)), fix=fix)
        return
    yield Finding(what="cluster", state="ok", told=f"Kubernetes {version.get('gitVersion', '')}")
    yield await _kinds(workspace)
    yield await _operator(workspace, options.operator_namespace)
    yield await _namespace(workspace)
    yield await _rights(workspace, "rights", RIGHTS, "missing")
    yield await _rights(workspace, "rights for run export", EXPORT_RIGHTS, "optional")
    yield await _key(workspace, options.wandb_secret, "WANDB_API_KEY", "for Weights & Biases; runs work without it")
    yield await _key(workspace, options.tinker_secret, "TINKER_API_KEY", "for training.backend tinker only")


async def _kinds(workspace: Workspace) -> Finding:
    try:
        served = await workspace.client.get(f"/apis/{GROUP}/{VERSION}", dict[str, Any])
        there = {each["name"] for each in served.get("resources", ())}
    except NotFound:
        there = set()
    except ApiError as error:
        return Finding(what="custom resources", state="unknown", told=error.message)
    absent = sorted(set(PLURALS.values()) - there)
    if not absent:
        return Finding(what="custom resources", state="ok", told=", ".join(PLURALS))
    return Finding(what="custom resources", state="missing", told=", ".join(absent), fix=f"{INSTALL} (or upgrade it)")


async def _operator(workspace: Workspace, namespace: str) -> Finding:
    """Whoever works renews a Lease every few seconds."""
    where = f"namespace {namespace}"
    try:
        page = await workspace.client.list(
            f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", dict[str, Any], {}
        )
    except Forbidden:
        told = f"no right to look at the leases of {where}; a run that stays Pending would show it"
        return Finding(what="operator", state="unknown", told=told)
    except ApiError as error:
        return Finding(what="operator", state="unknown", told=error.message)
    renewed = [
        datetime.fromisoformat(lease["spec"]["renewTime"])
        for lease in page.get("items") or ()
        if "clotho" in lease["metadata"]["name"] and lease["spec"].get("renewTime")
    ]
    if not renewed:
        fix = f"{INSTALL}; or say where it runs with --operator-namespace"
        return Finding(what="operator", state="missing", told=f"none in {where}", fix=fix)
    silence = (datetime.now(UTC) - max(renewed)).total_seconds()
    if silence > FRESH_SECONDS:
        fix = f"kubectl get pods --namespace {namespace}"
        return Finding(what="operator", state="missing", told=f"silent for {silence:.0f} s", fix=fix)
    return Finding(what="operator", state="ok", told=f"at work in {where}")


async def _namespace(workspace: Workspace) -> Finding:
    name = workspace.namespace
    try:
        await workspace.client.get(f"/api/v1/namespaces/{name}", dict[str, Any])
    except NotFound:
        return Finding(what="namespace", state="missing", told=name, fix=f"kubectl create namespace {name}")
    except ApiError:
        return Finding(what="namespace", state="unknown", told=f"{name}: no right to look at it")
    return Finding(what="namespace", state="ok", told=name)


async def _rights(
    workspace: Workspace, what: str, rights: tuple[tuple[str, str, str], ...], otherwise: State
) -> Finding:
    refused = []
    for group, resource, verb in rights:
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
            return Finding(what=what, state="unknown", told=error.message)
        if not answer.get("status", {}).get("allowed"):
            refused.append(f"{verb} {resource}")
    if not refused:
        return Finding(what=what, state="ok", told=f"all {len(rights)} in {workspace.namespace}")
    fix = f"an administrator can bind the ClusterRole edit to you in namespace {workspace.namespace}"
    return Finding(what=what, state=otherwise, told=f"not allowed: {', '.join(refused)}", fix=fix)


class _KeysOnly(Struct, frozen=True):
    """A Secret, of which the values are never decoded."""

    data: dict[str, Raw] = field(default_factory=dict)


async def _key(workspace: Workspace, secret: str, key: str, purpose: str) -> Finding:
    fix = f"kubectl create secret generic {secret} -n {workspace.namespace} --from-file={key}=FILE"
    try:
        found = await workspace.client.get(workspace.core(f"secrets/{secret}"), _KeysOnly)
    except NotFound:
        return Finding(what=key, state="optional", told=f"no Secret {secret}; {purpose}", fix=fix)
    except ApiError:
        return Finding(what=key, state="unknown", told=f"no right to look at Secret {secret}")
    if key not in found.data:
        return Finding(what=key, state="optional", told=f"Secret {secret} has no key {key}; {purpose}", fix=fix)
    return Finding(what=key, state="ok", told=f"in Secret {secret}")
