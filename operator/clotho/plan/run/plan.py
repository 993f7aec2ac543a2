"""The life of a run, read from top to bottom."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from clotho.api.phases import RESTING_PHASES
from clotho.api.policy import template_violations
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.api.validation import problems as spec_problems
from clotho.plan.model import Action, Observed, Plan
from clotho.plan.pod_problems import Problem
from clotho.plan.run.accounting import Accounting, account_for_failures, delete_due, next_report
from clotho.plan.run.autoscaling import autoscale
from clotho.plan.run.catalogue import look_up, remember_environments, wait_for_environments
from clotho.plan.run.completion import complete, finishing_message, has_trained_enough, is_complete
from clotho.plan.run.components import components_of
from clotho.plan.run.deadline import deadline_message, deadline_of
from clotho.plan.run.deletion import plan_deletion
from clotho.plan.run.entries import entry_problems
from clotho.plan.run.export import export_weights
from clotho.plan.run.gang import release_time
from clotho.plan.run.health import live_phase, missing_ranks, next_check, pulled_images, waiting_message, worst_problem
from clotho.plan.run.kueue import release_quota, report_pods_ready, wait_for_quota, within_quota
from clotho.plan.run.policy import rule
from clotho.plan.run.queueing import admit
from clotho.plan.run.references import wait_for_references
from clotho.plan.run.refusal import plan_refusal, refuse, reinstated
from clotho.plan.run.revision import revised
from clotho.plan.run.situation import Decision, Situation, fail
from clotho.plan.run.stall import StallCheck, find_stall
from clotho.plan.run.startup import make_missing, remove_outdated, remove_surplus, unrenderable_templates
from clotho.plan.run.status import compose, transition_events, write_time
from clotho.plan.run.steering import raise_steps
from clotho.plan.run.stop import stop_in_order, tidy_up
from clotho.plan.run.strictness import check_templates
from clotho.plan.run.suspend import resumed, wait_for_last_pods
from clotho.plan.run.ttl import delete_run, expiry_of
from clotho.plan.settings import PlanSettings
from clotho.plan.times import earliest
from clotho.plan.wording import sentence
from clotho.render.merge import TemplateError
from clotho.render.needs import needs_of, needs_problems


def plan(
    run: TrainingRun | UnreadableRun, observed: Observed, now: datetime, settings: PlanSettings
) -> Plan[TrainingRunStatus]:
    """Decide what happens next to `run`. Pure: the same arguments give the same plan; `now` is timezone-aware UTC.

    Once its actions and status are written and observed, a second call plans nothing but a time to look again.
    """
    if run.metadata.is_being_deleted:
        return plan_deletion(run, observed)
    if isinstance(run, UnreadableRun):
        return plan_refusal(run, now)
    lookup = look_up(reinstated(revised(resumed(run, observed.pods)), now), observed.environments, observed.catalogue)
    ruling = rule(run.spec, lookup.run, observed)
    limited = within_quota(ruling.run, observed.kueue)
    situation = Situation(
        run=limited,
        stored=run.status,
        observed=observed,
        components=components_of(limited, observed),
        now=now,
        settings=settings,
        policy=ruling.policy,
        violations=(*ruling.violations, *lookup.problems),
        waiting_for=lookup.waiting,
    )
    try:
        decision = release_quota(situation, decide(situation))
        return _with_status(situation, decision, compose(situation, decision))
    except Exception as error:  # a defect of one policy must not keep a run from being stopped
        return _plan_endings_only(situation, error)


def _plan_endings_only(situation: Situation, error: Exception) -> Plan[TrainingRunStatus]:
    """Stop, suspend and deadline, decided without the trainer's reports, which a defect may have come from."""
    cautious = msgspec.structs.replace(situation, ignores_reports=True)
    decision = decide_ending(cautious) or Decision(
        phase=situation.run.status.phase,
        reason="PlanningFailed",
        message=f"The operator cannot plan this run ({type(error).__name__}: {error}); "
        "stop, suspend and deadlineSeconds still work.",
        components=situation.components,
        is_stalled=True,
        wake_at=deadline_of(situation.run),
    )
    decision = release_quota(cautious, decision)
    return _with_status(cautious, decision, compose(cautious, decision))


def decide(situation: Situation) -> Decision:
    return decide_ending(situation) or _decide_life(situation)


def decide_ending(situation: Situation) -> Decision | None:
    run, deadline = situation.run, deadline_of(situation.run)
    if run.status.is_finished:
        return _after_the_end(situation)
    if is_complete(situation):
        return complete(situation)
    stopping = stop_in_order(situation) if run.spec.stop or run.spec.suspend else None
    if stopping is not None and stopping.phase in RESTING_PHASES:
        return stopping
    if deadline is not None and deadline <= situation.now:
        return fail(situation, "DeadlineExceeded", deadline_message(situation))
    if stopping is not None:
        return msgspec.structs.replace(stopping, wake_at=earliest([stopping.wake_at, deadline]))
    return None


def _decide_life(situation: Situation) -> Decision:
    deadline = deadline_of(situation.run)
    if waiting := _wait(situation):
        due = {action.key for action in waiting.actions}
        outdated = tuple(action for action in remove_outdated(situation) if action.key not in due)
        wake_at = earliest([waiting.wake_at, deadline])
        return msgspec.structs.replace(waiting, actions=(*waiting.actions, *outdated), wake_at=wake_at)
    accounting = account_for_failures(situation)
    if accounting.give_up:
        return fail(
            situation, accounting.give_up.reason, sentence(accounting.give_up.explanation), accounting.components
        )
    return _keep_running(situation, accounting, deadline)


def _wait(situation: Situation) -> Decision | None:
    """What keeps the run from starting, if anything does."""
    if wrong := _problems(situation):
        return refuse(situation, "; ".join(wrong))
    for step in (
        wait_for_environments,
        check_templates,
        wait_for_references,
        admit,
        remember_environments,
        wait_for_quota,
        wait_for_last_pods,
    ):
        if waiting := step(situation):
            return waiting
    return None


def _problems(situation: Situation) -> tuple[str, ...]:
    run = situation.run
    return (
        *situation.violations,
        *spec_problems(run.metadata.name, run.spec),
        *entry_problems(run.spec, situation.observed.catalogue),
        *_needs_problems(situation),
        *(template_violations(run.spec, situation.policy) or unrenderable_templates(situation)),
    )


def _needs_problems(situation: Situation) -> Iterator[str]:
    for each in situation.run.spec.environments:
        yield from needs_problems(f"environments.{each.name}.", needs_of(each), situation.settings.render)


def _keep_running(situation: Situation, accounting: Accounting, deadline: datetime | None) -> Decision:
    wrong = worst_problem(situation)
    if wrong is not None and wrong.is_permanent:
        return fail(situation, wrong.reason, wrong.message, accounting.components)
    stall_check = find_stall(msgspec.structs.replace(situation, components=accounting.components))
    if stall_check.give_up:
        explanation = f"{stall_check.message} {sentence(stall_check.give_up.explanation)}"
        return fail(situation, stall_check.give_up.reason, explanation, stall_check.components)
    try:
        due, retry_at = delete_due(situation)
        actions = (*due, *remove_surplus(situation), *make_missing(situation))
    except TemplateError as error:
        return refuse(situation, str(error))
    phase = live_phase(situation)
    actions += report_pods_ready(situation, phase)
    scaling = autoscale(situation)
    decision = Decision(
        phase=phase,
        reason=phase,
        message="",
        components=stall_check.components,
        autoscaling=scaling.environments,
        actions=_each_object_once(actions),
        notices=(*accounting.notices, *stall_check.notices, *scaling.notices),
        stall=stall_check.stall,
        is_stalled=stall_check.stall is not None,
        set_steps=raise_steps(situation),
        wake_at=earliest(
            [
                deadline,
                retry_at,
                stall_check.check_at,
                next_check(situation),
                next_report(situation),
                _release(situation),
            ]
        ),
    )
    reason, message = _words(situation, decision, stall_check, wrong)
    return msgspec.structs.replace(decision, reason=reason, message=message)


def _release(situation: Situation) -> datetime | None:
    at = release_time(situation, situation.components.trainer)
    return at if at is not None and at > situation.now else None


def _words(situation: Situation, decision: Decision, stall_check: StallCheck, wrong: Problem | None) -> tuple[str, str]:
    if stall_check.stall is not None:
        return stall_check.stall.cause, stall_check.message
    if wrong is not None:
        return wrong.reason, wrong.message
    if has_trained_enough(situation):
        return "Finishing", finishing_message(situation)
    if decision.phase == "Running" and all(component.is_ready for component in decision.components):
        return "Running", "Everything is ready."
    limit = situation.run.spec.restarts.limit
    return decision.phase, waiting_message(
        decision.components, limit, missing_ranks(situation), pulled_images(situation)
    )


def _each_object_once(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """A pod can be due for more than one reason."""
    return tuple({action.key: action for action in reversed(actions)}.values())[::-1]


def _after_the_end(situation: Situation) -> Decision:
    run, status = situation.run, situation.run.status
    expiry = expiry_of(run)
    exporting = export_weights(situation)
    if exporting.is_at_work:
        expiry = None  # its end is another pass
    is_expired = expiry is not None and expiry <= situation.now
    tidying, look_again = tidy_up(situation)
    return Decision(
        phase=status.phase,
        reason=status.phase,
        message=status.message,
        components=situation.components,
        actions=(delete_run(run),) if is_expired else (*tidying, *exporting.actions),
        notices=exporting.notices,
        export=exporting.status,
        exporter=exporting.component,
        wake_at=None if is_expired else earliest([expiry, look_again, exporting.wake_at]),
    )


def _with_status(situation: Situation, decision: Decision, status: TrainingRunStatus) -> Plan[TrainingRunStatus]:
    due = write_time(situation, status)
    if due is None or due > situation.now:
        wake_at = earliest([decision.wake_at, due])
        can_wait = wake_at != decision.wake_at
        return Plan(actions=decision.actions, set_steps=decision.set_steps, wake_at=wake_at, can_wait=can_wait)
    return Plan(
        actions=decision.actions,
        status=msgspec.structs.replace(status, written_at=situation.moment),
        events=(*decision.notices, *transition_events(situation.stored, status)),
        set_steps=decision.set_steps,
        wake_at=decision.wake_at,
    )
