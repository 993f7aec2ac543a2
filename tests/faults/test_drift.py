"""Every field of every object of a run is edited by hand, every object deleted, every label removed: all repaired."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clotho.cluster.outcomes import ApiError, NotFound
from clotho.render.objects import TOKEN_KEYS
from faults import life
from faults.campaign import Case, Recording, always, settled, until_equal
from faults.lab import Bench, Lab
from faults.masking import SERVERS_OWN, differences, masked_text
from rig.cluster_access import Body, eventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(3600)]
EDITED = ("metadata", "spec", "data")
Path = tuple[str, ...]


def fields(content: Any, path: Path = ()) -> Iterator[Path]:
    """Leaves; a list is one, because a merge patch replaces it as a whole."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            if path != ("metadata",) or key not in (*SERVERS_OWN, "name"):
                yield from fields(value, (*path, key))
    else:
        yield path


def edits(body: Body) -> Iterator[tuple[Path, str, Body]]:
    """Each field changed, and removed."""
    for path in fields({key: body[key] for key in EDITED if key in body}):
        for value in (changed(at(body, path)), None):
            shown = "(removed)" if value is None else str(value)[:60]
            yield path, f"{'.'.join(path)} = {shown}", nested(path, value)


def at(body: Any, path: Path) -> Any:
    for key in path:
        body = body[key]
    return body


def nested(path: Path, value: Any) -> Body:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def changed(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return "ZWRpdGVk"  # also valid as base64, a label, a name of a selector
        case [first, *rest]:
            return [_other(copy.deepcopy(first)), *rest]
    return {"edited": "ZWRpdGVk"} if isinstance(value, dict) else "edited"


def _other(item: Any) -> Any:
    """The item of a list with its first leaf changed."""
    if not isinstance(item, dict) or not item:
        return changed(item)
    key = next(iter(item))
    return {**item, key: changed(item[key]) if not isinstance(item[key], dict) else _other(item[key])}


# Each with the reason why a hand edit of it stays, or does not end where it began.
LEFT_ALONE = {
    "clotho.dev/attempt": "the pod's own counter: the run's may be ahead of it",
    "clotho.dev/restarts": "the same",
    "clotho.dev/token-keys": "a record of how the Secret was made",
    "clotho.dev/token-digests": "the same",
    "clotho.dev/fingerprint": "a record of what the claim was made from",
    "clotho.dev/generation": "a record of what the pod was made from",
    "tolerations": "Kubernetes allows adding tolerations to a pod, not removing them",
    "argocd.argoproj.io/ignore-restart-policy": "a hint to Argo CD, which the next pod has again",
    **dict.fromkeys(TOKEN_KEYS, "all pods start again with the other token: not as before"),
}
RETAINED_CLAIM = "persistentvolumeclaims/r-ID-trainer"  # it has no owner, so its label alone makes it the run's


def is_repaired(name: str, path: Path) -> bool:
    return path[-1] not in LEFT_ALONE and (name, path[-1]) != (RETAINED_CLAIM, "clotho.dev/owner-uid")


def cases(reference: Recording) -> list[Case]:
    names = [name for name in reference.states["running"] if name != "run"]
    claims = "persistentvolumeclaims/"  # Kubernetes does not delete one that a pod uses
    return [
        *(edited(name, reference) for name in names),
        *(deleted(name, reference) for name in names if not name.startswith(claims)),
    ]


def edited(name: str, reference: Recording) -> Case:
    async def run(lab: Lab) -> tuple[list[str], bool]:
        complaints: list[str] = []
        async with lab.bench() as bench:
            await life.start(bench.cluster, bench.kubelet)
            expected = await settled(bench)
            plural, body = await find(bench, name)
            for path, what, change in edits(body):
                if is_repaired(name, path) and await edit(bench, plural, body["metadata"]["name"], change):
                    complaints += await unrepaired(bench, what, expected)
                    if complaints:
                        break
            return [*complaints, *always(bench)], True

    return Case(f"edit {name}", run)


async def edit(bench: Bench, plural: str, name: str, change: Body) -> bool:
    """Whether the server took it, and it changed something."""
    try:
        before = await bench.cluster.get(plural, name)
        after = await bench.cluster.patch(plural, name, change)
    except ApiError:
        return False
    return bool(before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"])


async def unrepaired(bench: Bench, what: str, expected: Body) -> list[str]:
    try:
        await until_equal(bench, what, expected, limit_seconds=30)
    except AssertionError as error:
        return [str(error)]
    return []


async def find(bench: Bench, name: str) -> tuple[str, Body]:
    plural, _, masked_name = name.partition("/")
    (body,) = [each for each in await bench.cluster.all(plural) if masked_text(each["metadata"]["name"]) == masked_name]
    return plural, body


def deleted(name: str, reference: Recording) -> Case:
    async def run(lab: Lab) -> tuple[list[str], bool]:
        async with lab.bench() as bench:
            await life.start(bench.cluster, bench.kubelet)
            before = await settled(bench)
            plural, body = await find(bench, name)
            await bench.cluster.delete(plural, body["metadata"]["name"], gracePeriodSeconds=0)

            async def is_back() -> tuple[bool, str]:
                try:
                    found = await bench.cluster.get(plural, body["metadata"]["name"])
                except NotFound:
                    return False, "gone"
                return found["metadata"]["uid"] != body["metadata"]["uid"], "the old one"

            await eventually(f"{name} recreated", is_back, life.LIMIT_SECONDS)
            await bench.cluster.until_phase("Running", life.RUN, life.LIMIT_SECONDS)
            after = await settled(bench)
            return [*missing(before, after), *always(bench)], True

    return Case(f"delete {name}", run)


def missing(before: Body, after: Body) -> list[str]:
    """The same objects exist; counters of restarts may differ."""
    return differences(dict.fromkeys(before, True), dict.fromkeys(after, True))


async def test_drift(reference: Recording, run_campaign: Callable) -> None:
    every = cases(reference)
    quick = ("edit networkpolicies", "edit poddisruptionbudgets", "delete services", "delete pods/r-ID-trainer")
    await run_campaign("drift", every, [case for case in every if case.name.startswith(quick)])
