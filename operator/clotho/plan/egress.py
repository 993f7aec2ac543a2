"""The way out that an Environment gets in pods that are not a run's: while it is described, and in tests."""

from collections.abc import Iterable

from clotho.api.environment import Environment
from clotho.api.policy import combine, pod_violations
from clotho.api.training_policy import AnyPolicy
from clotho.api.training_run import EgressRule
from clotho.plan.settings import PlanSettings
from clotho.render.needs import needs_of, needs_problems


def permitted_egress(
    environment: Environment, policies: Iterable[AnyPolicy], settings: PlanSettings
) -> tuple[EgressRule, ...]:
    """All of it, or nothing: an edit that is refused opens nothing for a pod that is alive."""
    needs = needs_of(environment.spec)
    networks = [rule.cidr for rule in needs.egress]
    if any(needs_problems("", needs, settings.render)) or pod_violations("", {}, combine(policies), networks):
        return ()
    return needs.egress
