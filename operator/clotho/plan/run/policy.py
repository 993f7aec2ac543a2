"""TrainingPolicies, enforced a second time: what they forbid a run, and what they fill in."""

import msgspec
from msgspec import Struct

from clotho.api.policy import Policy, combine, fill_in, violations
from clotho.api.status import PolicyInForce
from clotho.api.training_run import TrainingRun, TrainingRunSpec
from clotho.plan.model import Observed
from clotho.plan.run.revision import is_outdated


class Ruling(Struct, frozen=True, kw_only=True):
    run: TrainingRun  # with the locked values in its spec
    policy: PolicyInForce | None = None
    violations: tuple[str, ...] = ()


def rule(asked: TrainingRunSpec, run: TrainingRun, observed: Observed) -> Ruling:
    """A run lives under the policies that it was started under: a later change neither kills nor changes it.

    `asked` is what its author wrote, `run` has what its Environments add: their settings give way to locked ones, but
    their images are as limited as the author's.
    """
    policy = run.status.policy if has_begun(run, observed) else present_policy(observed)
    if policy is None:
        return Ruling(run=run)
    try:
        filled = msgspec.structs.replace(run, spec=fill_in(run.spec, policy))
    except msgspec.ValidationError as error:
        return Ruling(run=run, policy=policy, violations=(f"the locked fields cannot be filled in: {error}",))
    in_force = policy.in_force if isinstance(policy, Policy) else policy
    wrong = (*violations(asked, policy), *violations(filled.spec, policy))
    return Ruling(run=filled, policy=in_force, violations=tuple(dict.fromkeys(wrong)))


def present_policy(observed: Observed) -> Policy | None:
    return combine(observed.policies) if observed.policies else None


def has_begun(run: TrainingRun, observed: Observed) -> bool:
    return bool(run.status.policy or run.status.attempt) or any(not is_outdated(run, pod) for pod in observed.pods)
