"""Begins drafts of runs: with the environment and the policies as the namespace has them now."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from clotho.api import environment, training_policy
from clotho.api.environment import Environment
from clotho.api.policy import Policy, combine
from clotho.authoring.draft import Draft, RefusedEditError
from clotho.workspace.objects import Workspace
from clotho_contract.nearest import nearest

NAME_LIMIT: Final = 63


async def begin_draft(workspace: Workspace, name: str, base: Mapping[str, Any]) -> Draft:
    """`base`: the spec of a run that everything starts from; its environments do not count."""
    chosen = await find_environment(workspace, name)
    spec = {key: value for key, value in base.items() if key != "environments"}
    return Draft(environment=chosen, policy=await policy_in_force(workspace), spec=spec)


async def policy_in_force(workspace: Workspace) -> Policy:
    return combine(training_policy.parse(each) for each in await workspace.all("TrainingPolicy"))


async def find_environment(workspace: Workspace, name: str) -> Environment:
    catalogue = {each["metadata"]["name"]: each for each in await workspace.all("Environment")}
    if name not in catalogue:
        message = f"no environment {name!r} in namespace {workspace.namespace}{nearest(name, catalogue)}"
        raise RefusedEditError(message, available=sorted(catalogue))
    chosen = environment.parse(catalogue[name])
    if not isinstance(chosen, Environment):
        raise RefusedEditError(f"environment {name} cannot be read: {chosen.problem}")
    ready = chosen.status.condition("Ready")
    if ready is None or ready.status != "True":
        reason = chosen.status.message or "not described by the operator yet"
        raise RefusedEditError(f"environment {name} is not ready: {reason}")
    return chosen


def fresh_name(environment: str) -> str:
    """`<environment>-<id>`, as a Kubernetes name that starts with a letter."""
    suffix = f"-{uuid.uuid4().hex[:8]}"
    stem = environment.replace(".", "-")[: NAME_LIMIT - len(suffix)].strip("-")
    return f"{stem if stem[:1].isalpha() else f'run-{stem}'}{suffix}"[:NAME_LIMIT]
