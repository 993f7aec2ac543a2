"""A namespace as it looks from outside, without what differs from one run to the next: ids, times, addresses."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Collection
from typing import Any

import yaml

from clotho.api.names import UID_LABEL
from clotho.cluster.outcomes import NotFound
from rig.cluster_access import ClusterAccess

Body = dict[str, Any]
State = dict[str, Any]  # "plural/name" -> what must be equal
KINDS = (
    "pods",
    "services",
    "secrets",
    "configmaps",
    "networkpolicies",
    "persistentvolumeclaims",
    "poddisruptionbudgets",
)
PREDECESSORS = " of an earlier run"
NOT_OURS = frozenset({"kube-root-ca.crt"})
SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "namespace", "selfLink")
ASSIGNED = frozenset({"clusterIP", "clusterIPs", "nodeName", "podIP", "volumeName", "node", "logs", "uid", "podUID"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)")
_RUN_ID = re.compile(r"(?<=-)[0-9a-f]{8}(?=[-./ ]|$)")
_HASH = re.compile(r"\b[0-9a-f]{10,64}\b")


async def state_of(cluster: ClusterAccess, run: str = "r") -> State:
    """Everything in the namespace, and the run itself."""
    owner, *lists = await asyncio.gather(_run(cluster, run), *(cluster.all(plural) for plural in KINDS))
    uids = [each["metadata"].get("labels", {}).get(UID_LABEL, "") for items in lists for each in items]
    uid = owner["metadata"]["uid"] if owner else max(uids, default="")
    state = {
        f"{plural}/{masked_text(each['metadata']['name'])}{_mark(each, uid)}": masked(
            plural, each, uid, cluster.namespace
        )
        for plural, items in zip(KINDS, lists, strict=True)
        for each in items
        if each["metadata"]["name"] not in NOT_OURS
    }
    if owner is not None:
        state["run"] = _plain({"status": owner.get("status", {})}, uid, cluster.namespace)
    return state


def _mark(body: Body, uid: str) -> str:
    """Objects of an earlier run of the same name are marked."""
    return "" if body["metadata"].get("labels", {}).get(UID_LABEL, uid) == uid else PREDECESSORS


async def _run(cluster: ClusterAccess, run: str) -> Body | None:
    try:
        return await cluster.run(run)
    except NotFound:
        return None


def masked(plural: str, body: Body, uid: str, namespace: str) -> Any:
    metadata = {key: value for key, value in body["metadata"].items() if key not in SERVERS_OWN}
    kept: Body = {"metadata": metadata, "spec": body.get("spec")}
    if plural in ("secrets", "configmaps"):
        kept["data"] = {key: _content(key, value) for key, value in (body.get("data") or {}).items()}
    if plural == "pods":
        kept["phase"] = body["status"].get("phase")
    return _plain(kept, uid, namespace)


def _content(key: str, value: str) -> Any:
    """The rendered file, parsed: an id of digits is quoted in it. Of a token only whether there is one."""
    return yaml.load(base64.b64decode(value), yaml.CSafeLoader) if key.endswith(".yaml") else f"filled: {bool(value)}"


def _plain(content: Any, uid: str, namespace: str) -> Any:
    if isinstance(content, dict):
        kept = {key: value for key, value in content.items() if key not in ASSIGNED}
        return {_plain(key, uid, namespace): _plain(value, uid, namespace) for key, value in kept.items()}
    if isinstance(content, list):
        return [_plain(value, uid, namespace) for value in content]
    if isinstance(content, str):
        text = content.replace(uid, "UID").replace(uid[:8], "ID") if uid else content
        return masked_text(_HASH.sub("HASH", _TIME.sub("TIME", text.replace(namespace, "NAMESPACE"))))
    return content


def masked_text(text: str) -> str:
    return _RUN_ID.sub("ID", text)


def without(content: Any, keys: Collection[str]) -> Any:
    """Without these keys, and without items of lists that have such a name."""
    if isinstance(content, dict):
        return {key: without(value, keys) for key, value in content.items() if key not in keys}
    if isinstance(content, list):
        return [
            without(value, keys) for value in content if not (isinstance(value, dict) and value.get("name") in keys)
        ]
    return content


def differences(expected: Any, found: Any, path: str = "") -> list[str]:
    """Where two states differ, one line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted({*expected, *found})
        return [
            line
            for key in keys
            for line in differences(expected.get(key, "(absent)"), found.get(key, "(absent)"), f"{path}/{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{path}/{index}")]
    return [] if expected == found else [f"{path}: expected {_short(expected)}, found {_short(found)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else f"{text[:117]}..."
