"""Every property of the schema is set, changed and removed on a running run, then rolled back: the run recovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho.cluster.outcomes import Conflict, Invalid
from clotho_contract.names import CHECKPOINT_STEP_VARIABLE
from faults import life
from faults.campaign import Case, Recording, always, until_equal
from faults.lab import Bench, Lab
from faults.masking import State, without
from rig.cluster_access import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(3600)]
CRD = Path(__file__).parents[2] / "crds" / "clotho.dev_trainingruns.yaml"
Schema = dict[str, Any]
NOT_ROLLED_BACK = frozenset({("stop",), ("deadlineSeconds",), ("training", "steps")})  # it ends, or only grows
POLICIES_THAT_STAY = frozenset({"networkpolicies/r-ID-inference", "networkpolicies/r-ID-trainer"})  # without effect
LEAVES_NOT_ENTERED = ("template", "chatTemplate")  # a pod's own schema
# What differs by what happened on the way: pods were replaced, and resume from a checkpoint.
COUNTERS = frozenset(
    {
        "attempt",
        "restarts",
        "observedGeneration",
        "lastExit",
        "clotho.dev/attempt",
        "clotho.dev/restarts",
        "clotho.dev/generation",
        "clotho.dev/fingerprint",
        "message",
        "history",
        "attempts",
        CHECKPOINT_STEP_VARIABLE,
    }
)


@dataclass(frozen=True)
class Mutation:
    path: tuple[str, ...]
    value: Any  # None removes it

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} = {'(removed)' if self.value is None else self.value}"

    def patch(self) -> dict[str, Any]:
        change: Any = self.value
        for key in reversed(self.path):
            change = {key: change}
        assert isinstance(change, dict)
        return change


def spec_schema() -> Schema:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert isinstance(schema, dict)
    return schema


def mutations(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[Mutation]:
    """For each property: every value of an enumeration, or two others of its type; and its removal."""
    if "properties" in schema and (not path or path[-1] not in LEAVES_NOT_ENTERED):
        for name, part in schema["properties"].items():
            yield from mutations(part, (*path, name))
    elif path not in NOT_ROLLED_BACK:
        yield from (Mutation(path, value) for value in (*values(schema), None))


def values(schema: Schema) -> tuple[Any, ...]:
    least = schema.get("minimum", 0)
    match schema.get("type"):
        case _ if "enum" in schema:
            return tuple(schema["enum"])
        case "boolean":
            return (True, False)
        case "integer":
            return (least + 1, min(schema.get("maximum", 100_000), least + 1000))
        case "number":
            return (least + 0.25, least + 0.5)
        case "string":
            return ("changed", "2Gi")
        case "array":
            return ([],)
    return ({},)


def comparable(state: State) -> State:
    return without(state, COUNTERS | POLICIES_THAT_STAY)


def cases(reference: Recording) -> list[Case]:
    by_property: dict[str, list[Mutation]] = {}
    for mutation in mutations(spec_schema()):
        by_property.setdefault(".".join(mutation.path[:2]), []).append(mutation)
    expected = comparable(reference.states["running"])
    return [
        *(one_by_one(name, chosen, expected) for name, chosen in by_property.items()),
        chained([each for chosen in by_property.values() for each in chosen], expected),
    ]


def one_by_one(name: str, chosen: list[Mutation], expected: State) -> Case:
    async def run(lab: Lab) -> tuple[list[str], bool]:
        complaints = []
        async with lab.bench() as bench:
            await life.start(bench.cluster, bench.kubelet)
            original = (await bench.cluster.run(life.RUN))["spec"]
            for mutation in chosen:
                if not await mutate(bench, mutation):
                    continue
                await restore(bench, original)
                try:
                    await until_equal(bench, f"{mutation}, rolled back", expected, mask=comparable)
                except AssertionError as error:
                    complaints.append(str(error))
                    break
            return [*complaints, *always(bench)], True

    return Case(f"spec.{name}", run)


def chained(chosen: list[Mutation], expected: State) -> Case:
    """One on top of the other, then all of them rolled back at once."""

    async def run(lab: Lab) -> tuple[list[str], bool]:
        async with lab.bench() as bench:
            await life.start(bench.cluster, bench.kubelet)
            original = (await bench.cluster.run(life.RUN))["spec"]
            for mutation in chosen:
                await mutate(bench, mutation, waits=False)
            await restore(bench, original)
            await until_equal(bench, "all mutations, rolled back", expected, mask=comparable)
            return always(bench), True

    return Case("spec, chained", run)


async def mutate(bench: Bench, mutation: Mutation, *, waits: bool = True) -> bool:
    """Whether the server took it, and it changed something; then the operator has reacted to it."""
    before = (await bench.cluster.run(life.RUN))["metadata"]["generation"]
    try:
        changed = await bench.cluster.patch("trainingruns", life.RUN, {"spec": mutation.patch()})
    except Invalid:
        return False
    if changed["metadata"]["generation"] == before:
        return False
    if waits:
        await until_observed(bench, str(mutation))
    return True


async def restore(bench: Bench, original: dict[str, Any]) -> None:
    path = f"{bench.cluster.folder('trainingruns')}/{life.RUN}"

    async def replace() -> tuple[bool, str]:
        body = await bench.cluster.run(life.RUN)
        try:
            await bench.cluster.client.replace(path, {**body, "spec": original}, dict[str, Any])
        except Conflict:  # the operator has written meanwhile
            return False, "conflict"
        return True, ""

    await eventually("rolled back", replace)
    await until_observed(bench, "rolled back")


async def until_observed(bench: Bench, what: str) -> None:
    def is_observed(run: dict[str, Any]) -> bool:
        return bool(run["status"].get("observedGeneration") == run["metadata"]["generation"])

    await bench.cluster.until(f"observed: {what}", is_observed, life.RUN, life.LIMIT_SECONDS)


async def test_mutation(reference: Recording, run_campaign: Callable) -> None:
    every = cases(reference)
    sample = [case for case in every if case.name in ("spec.environments", "spec.suspend", "spec.inference.replicas")]
    await run_campaign("mutation", every, sample)
