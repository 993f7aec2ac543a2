"""`policy explain`: all policies of the namespace, combined."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from clotho.api.lockable import ENVIRONMENT_CONFIG
from clotho.api.policy import Policy
from clotho.authoring.run_fields import run_fields, value_in
from clotho.cli.failure import Exit
from clotho.cli.terminal import output
from clotho.cli.terminal.screen import page_width
from clotho.workspace.drafting import policy_in_force
from clotho.workspace.objects import Workspace


async def explain(options: argparse.Namespace, workspace: Workspace) -> int:
    policy = await policy_in_force(workspace)
    output.show(options.output, msgspec.to_builtins(policy), lines(policy, workspace.namespace))
    return Exit.UNSUCCESSFUL if policy.problems else Exit.OK


def lines(policy: Policy, namespace: str) -> list[str]:
    if not policy.names:
        return [f"No TrainingPolicy in {namespace}: nothing is locked or limited."]
    text = [f"Namespace {namespace}, by {', '.join(policy.names)} (of several policies the strictest applies):", ""]
    text += [f"INVALID: {problem}; no run can start until it is corrected" for problem in policy.problems]
    text += output.rows(["LOCKED FIELD", "VALUE"], _locked(policy), "No field is locked.", page_width())
    text += ["", *output.rows(["LIMIT", "VALUE"], _limits(policy), "Nothing is limited.", page_width())]
    return text


def _locked(policy: Policy) -> list[list[str]]:
    of_run = [(name, value_in(policy.locked, name)) for name in run_fields()]
    of_environments: dict[str, Any] = policy.locked.get(ENVIRONMENT_CONFIG, {})
    shown = [(name, value) for name, value in of_run if value is not None]
    shown += [(f"(environment) {name}", value) for name, value in of_environments.items()]
    return [[name, output.compact(value)] for name, value in shown]


def _limits(policy: Policy) -> list[list[str]]:
    limits = policy.limits
    numbers = {
        "GPUs per trainer": limits.gpus,
        "environment pods per run": limits.replicas,
        "training steps": limits.steps,
        "active runs": limits.active_runs,
    }
    body = [[name, str(number)] for name, number in numbers.items() if number is not None]
    for name, lists in (("images", limits.images), ("models", limits.models), ("egress", limits.egress)):
        body += [[name, " ".join(each) or "(none)"] for each in lists]
    return body
