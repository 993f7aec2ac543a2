"""The life of an InferenceTest: one pod a model, all at once; each pod's termination message is its model's result."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct, field

from clotho.api.environment import AnyEnvironment, Environment
from clotho.api.inference_tests import (
    AnyTest,
    InferenceTest,
    InferenceTestStatus,
    ModelResult,
    TestedModel,
    TestSample,
    TestStep,
    TestSummary,
    UnreadableTest,
)
from clotho.api.phases import FINISHED_TEST_PHASES, TestPhase
from clotho.api.policy import combine, pod_violations
from clotho.api.training_policy import AnyPolicy
from clotho.authoring.config_fields import problems as config_problems
from clotho.plan.conditions import Wanted, conditions, ready, reconciling, stalled
from clotho.plan.drift import repair
from clotho.plan.egress import permitted_egress
from clotho.plan.failures import classify
from clotho.plan.model import (
    Action,
    Apply,
    Create,
    Delete,
    Event,
    ObjectKey,
    ObjectSeen,
    Plan,
    Reference,
    Refusal,
    delete_pod,
)
from clotho.plan.pod_problems import lacks_config, next_pod_check, pod_problem, slow_pull
from clotho.plan.pods import Pod
from clotho.plan.references import LOOK_AGAIN_SECONDS, WAITING_FOR_REFERENCES, absence
from clotho.plan.settings import PlanSettings
from clotho.plan.times import earliest, later
from clotho.plan.wording import counted, sentence
from clotho.render import testing
from clotho.render.merge import TemplateError
from clotho.render.names import base_name
from clotho.render.needs import needs_of
from clotho_contract.termination import Trial

ERROR_LIMIT: Final = 2000
SAMPLE_LIMIT: Final = 500
SCORES_LIMIT: Final = 16
_START_SECONDS: Final = 600  # beyond its time limit, for a pod that never gets to run
_CONFIG_SECONDS: Final = 20  # for a pod that names a key of a Secret that is not there


class TestSeen(Struct, frozen=True, kw_only=True):
    """All that is known of an InferenceTest besides itself."""

    pods: tuple[Pod, ...] = ()
    objects: Mapping[ObjectKey, ObjectSeen] = field(default_factory=dict)
    environment: AnyEnvironment | None = None  # the one that the test names
    missing: tuple[Reference, ...] = ()  # as long as the test has no pods
    refused: Mapping[ObjectKey, Refusal] = field(default_factory=dict)
    policies: tuple[AnyPolicy, ...] = ()


class _Ruling(Struct, frozen=True, kw_only=True):
    """What becomes of the test as a whole. `problem` ends it."""

    results: tuple[ModelResult, ...] = ()
    actions: tuple[Action, ...] = ()
    waiting: str = ""
    reason: str = ""  # why it waits, for the conditions; empty: its phase
    problem: str = ""
    wake_at: datetime | None = None


def plan_test(test: AnyTest, seen: TestSeen, now: datetime, settings: PlanSettings) -> Plan[InferenceTestStatus]:
    if test.metadata.is_being_deleted:
        return Plan()
    if test.status.is_finished:
        return _expire(test, now)
    if isinstance(test, UnreadableTest):
        return _with_status(test, _Ruling(problem=f"the spec is not valid: {test.problem}"), now)
    return _with_status(test, _rule(test, seen, now, settings), now)


def _expire(test: AnyTest, now: datetime) -> Plan[InferenceTestStatus]:
    ttl = test.spec.ttl_seconds_after_finished if isinstance(test, InferenceTest) else None
    if ttl is None or test.status.completion_time is None:
        return Plan()
    expiry, metadata = later(test.status.completion_time, ttl), test.metadata
    if expiry > now:
        return Plan(wake_at=expiry)
    key = ObjectKey(test.kind, metadata.name)
    return Plan(actions=(Delete(key=key, uid=metadata.uid, resource_version=metadata.resource_version),))


def _rule(test: InferenceTest, seen: TestSeen, now: datetime, settings: PlanSettings) -> _Ruling:
    pods = {pod.index: pod for pod in seen.pods}
    stored = test.status.models or tuple(
        ModelResult(name=model.name, size=model.size) for model in test.spec.tested_models
    )
    results = tuple(_judge(test, before, pods.get(index), now) for index, before in enumerate(stored))
    overdue = tuple(
        delete_pod(pods[index])
        for index, result in enumerate(results)
        if result.is_finished and index in pods and not (pods[index].has_ended or pods[index].is_terminating)
    )
    missing = [index for index, result in enumerate(results) if not result.is_finished and index not in pods]
    is_live = any(not pod.has_ended for pod in pods.values())
    unfinished = [(_title(results[index].name), pod) for index, pod in pods.items() if not results[index].is_finished]
    give_up_times = [_give_up_at(test, pod) for _, pod in unfinished]
    ruling = _Ruling(
        results=results,
        actions=(*_wall(test, seen, settings), *overdue) if is_live else overdue,
        waiting=_trouble(unfinished, now),
        wake_at=earliest([next_pod_check((pod for _, pod in unfinished), now), *give_up_times]),
    )
    if not missing:
        return ruling
    ruling = _begin(test, seen, settings, ruling, missing)
    return _look_again(ruling, now) if ruling.reason == WAITING_FOR_REFERENCES else ruling


def _look_again(ruling: _Ruling, now: datetime) -> _Ruling:
    return msgspec.structs.replace(ruling, wake_at=earliest([ruling.wake_at, later(now, LOOK_AGAIN_SECONDS)]))


def references_of_test(test: InferenceTest, environment: AnyEnvironment | None) -> tuple[Reference, ...]:
    """Of the test, and of the Environment that it names."""
    return tuple(each for each in _references(test, environment) if each.name)


def _references(test: InferenceTest, environment: AnyEnvironment | None) -> Iterator[Reference]:
    spec = test.spec
    if any(not model.secret_name for model in spec.tested_models):
        yield Reference("Secret", spec.secret_name, "secretName")
    for index, model in enumerate(spec.models):
        yield Reference("Secret", model.secret_name, f"models[{index}].secretName")
    yield Reference("ConfigMap", spec.config_map_name, "configMapName")
    if isinstance(environment, Environment):
        owner, named = f"environment {environment.metadata.name}", environment.spec
        yield Reference("ConfigMap", named.config_map_name, f"{owner}: configMapName")
        yield Reference("Secret", named.secret_name, f"{owner}: secretName")
        yield Reference("PersistentVolumeClaim", named.cache_claim_name, f"{owner}: cacheClaimName")


def _judge(test: InferenceTest, before: ModelResult, pod: Pod | None, now: datetime) -> ModelResult:
    """What is known of one model; a result that is stored stands."""
    if before.is_finished:
        return before
    if pod is None:
        if before.phase == "Pending":
            return before
        return msgspec.structs.replace(before, phase="Failed", error="Its pod was deleted before it had ended.")
    if pod.has_ended:
        return _result(before, pod)
    if now >= _give_up_at(test, pod):
        problem = pod_problem(_title(before.name), pod, now)
        why = problem.message if problem else "Its pod did not end in time and was deleted."
        return msgspec.structs.replace(before, phase="Failed", error=why)
    return msgspec.structs.replace(before, phase="Running" if pod.is_running else "Pending")


def _title(model: str) -> str:
    return f"the pod that tries {model}"


def _give_up_at(test: InferenceTest, pod: Pod) -> datetime:
    born = pod.metadata.creation_timestamp
    if born is None:
        raise ValueError(f"pod {pod.name} has no creation time")
    if lacks_config(pod):
        return later(born, _CONFIG_SECONDS)
    return later(born, test.spec.timeout_seconds + testing.LENIENCE_SECONDS + _START_SECONDS)


def _result(before: ModelResult, pod: Pod) -> ModelResult:
    reported = pod.termination
    trial = reported.trial if reported is not None and reported.trial is not None else Trial()
    is_good = reported is not None and reported.reason == "Finished" and reported.trial is not None
    error = ""
    if not is_good:
        problem = reported.message if reported is not None else classify(_title(before.name), pod).explanation
        error = "\n".join(filter(None, (sentence(problem), trial.output)))[:ERROR_LIMIT]
    return msgspec.structs.replace(
        before,
        phase="Completed" if is_good else "Failed",
        steps_tested=trial.steps_tested,
        completions=trial.completions,
        correct=trial.correct,
        accuracy=_share(trial.correct, trial.completions),
        steps_with_correct=trial.steps_with_correct,
        step_success_rate=_share(trial.steps_with_correct, trial.steps_tested),
        samples=_samples(trial),
        steps=tuple(TestStep(scores=scores[:SCORES_LIMIT]) for scores in trial.scores[:SCORES_LIMIT]),
        error=error,
    )


def _samples(trial: Trial) -> tuple[TestSample, ...]:
    """Written by untrusted code: no more than status has room for."""
    return tuple(
        TestSample(prompt=each.prompt[-SAMPLE_LIMIT:], answer=each.answer[:SAMPLE_LIMIT], score=each.score)
        for each in trial.samples[:2]
    )


def _share(component: int, whole: int) -> float:
    return round(component / whole, 4) if whole > 0 else 0.0


def _trouble(unfinished: Sequence[tuple[str, Pod]], now: datetime) -> str:
    """Of pods, each with its title."""
    problems = (problem.message for title, pod in unfinished if (problem := pod_problem(title, pod, now)))
    pulls = (sentence(pull.of(title)) for title, pod in unfinished if (pull := slow_pull(pod, now)))
    return next(itertools.chain(problems, pulls), "")


def _begin(test: InferenceTest, seen: TestSeen, settings: PlanSettings, ruling: _Ruling, missing: list[int]) -> _Ruling:
    for key, refusal in seen.refused.items():
        text = f"the API server refused {key.kind} {key.name}: {refusal.message}"
        if refusal.is_permanent:
            return msgspec.structs.replace(ruling, problem=text)
        ruling = msgspec.structs.replace(ruling, waiting=sentence(text))
    subject = _subject(test, seen.environment)
    if isinstance(subject, _Ruling):
        return msgspec.structs.replace(subject, results=ruling.results)
    if wrong := testing.address_problems(test, settings.render):
        return msgspec.structs.replace(ruling, problem=f"the spec is not allowed: {'; '.join(wrong)}")
    networks = [rule.cidr for rule in subject.needs.egress]
    if wrong := pod_violations(subject.image, subject.template, combine(seen.policies), networks):
        return msgspec.structs.replace(ruling, problem=f"the spec is not allowed: {'; '.join(wrong)}")
    if seen.missing:
        return msgspec.structs.replace(ruling, waiting=absence(seen.missing), reason=WAITING_FOR_REFERENCES)
    metadata = test.metadata
    try:
        pods = [
            Create(
                key=ObjectKey("Pod", testing.trial_pod_name(metadata, index)),
                manifest=testing.trial_pod(test, subject, index, settings.render),
            )
            for index in missing
        ]
    except TemplateError as error:
        return msgspec.structs.replace(ruling, problem=str(error))
    walls = [wall for wall in _wall(test, seen, settings) if wall not in ruling.actions]
    return msgspec.structs.replace(ruling, actions=(*ruling.actions, *walls, *pods))


def _wall(test: InferenceTest, seen: TestSeen, settings: PlanSettings) -> tuple[Apply, ...]:
    key = ObjectKey("NetworkPolicy", base_name(test.metadata))
    entry = seen.environment
    egress = permitted_egress(entry, seen.policies, settings) if isinstance(entry, Environment) else ()
    return repair(key, testing.trial_wall(test, settings.render, egress), seen.objects)


def _subject(test: InferenceTest, environment: AnyEnvironment | None) -> testing.Subject | _Ruling:
    spec = test.spec
    if not spec.environment_name:
        return testing.Subject(
            entry=spec.entry,
            image=spec.image,
            config_map_name=spec.config_map_name,
            config=spec.config | {"group_size": spec.group_size},
        )
    if not isinstance(environment, Environment):
        state = environment.problem if environment is not None else "the Environment does not exist"
        return _Ruling(waiting=f"Waiting for environment {spec.environment_name}: {state}.")
    if not environment.is_described:
        if problem := environment.stall_message:
            return _Ruling(problem=f"environment {spec.environment_name} does not work: {problem}")
        return _Ruling(waiting=f"Waiting for environment {spec.environment_name}: it is being described.")
    found = environment.status
    config = environment.spec.config | spec.config
    if any(each.name == "group_size" for each in found.fields):
        config |= {"group_size": spec.group_size}
    if wrong := config_problems(config, found.fields, omitted=found.omitted_fields):
        return _Ruling(problem=f"the spec is not valid: {'; '.join(wrong)}")
    return testing.Subject(
        entry=environment.entry,
        image=environment.spec.image,
        config_map_name=environment.spec.config_map_name,
        secret_name=environment.spec.secret_name,
        config=config,
        template=environment.spec.template,
        needs=needs_of(environment.spec),
    )


def summarize(models: tuple[TestedModel, ...], results: tuple[ModelResult, ...]) -> TestSummary:
    tested = [result for result in results if result.steps_tested > 0]
    succeeded = sum(result.phase == "Completed" for result in results)
    accuracies = [result.accuracy for result in tested]
    best = max(tested, key=lambda result: result.accuracy, default=None)
    return TestSummary(
        requested=len(models),
        tested=len(tested),
        succeeded=succeeded,
        best_model=best.name if best is not None else "",
        average_accuracy=round(sum(accuracies) / len(accuracies), 4) if accuracies else 0.0,
        environment_works=succeeded > 0,
    )


def _phase(ruling: _Ruling) -> TestPhase:
    if ruling.problem:
        return "Failed"
    if ruling.results and all(result.is_finished for result in ruling.results):
        return "Completed" if any(result.steps_tested > 0 for result in ruling.results) else "Failed"
    is_under_way = any(result.phase != "Pending" for result in ruling.results)
    return "Running" if is_under_way else "Pending"


def _message(ruling: _Ruling, phase: TestPhase, summary: TestSummary | None) -> str:
    if ruling.problem:
        return sentence(ruling.problem)
    if phase == "Failed":
        first, _, _ = ruling.results[0].error.partition("\n")
        return sentence(f"no model made a group; the first error: {first}")
    if phase == "Completed" and summary is not None:
        works = "The environment works" if summary.environment_works else "No model made all its groups"
        return f"{works}: {summary.succeeded} of {counted(summary.requested, 'model')}, best {summary.best_model}."
    if ruling.waiting:
        return ruling.waiting
    done = sum(result.is_finished for result in ruling.results)
    return f"Testing {counted(len(ruling.results), 'model')}: {done} done."


def _with_status(test: AnyTest, ruling: _Ruling, now: datetime) -> Plan[InferenceTestStatus]:
    before, generation, moment = test.status, test.metadata.generation, now.replace(microsecond=0)
    phase = _phase(ruling)
    is_over = phase in FINISHED_TEST_PHASES
    models = test.spec.tested_models if isinstance(test, InferenceTest) else ()
    has_result = is_over or any(result.is_finished for result in ruling.results)
    summary = summarize(models, ruling.results) if has_result else None
    message = _message(ruling, phase, summary)
    status = InferenceTestStatus(
        phase=phase,
        observed_generation=generation,
        message=message,
        conditions=conditions(_conditions(phase, ruling.reason, message), before.conditions, moment, generation),
        models=ruling.results or before.models,
        summary=summary,
        start_time=before.start_time or (moment if phase != "Pending" else None),
        completion_time=moment if is_over else None,
    )
    if status == before:
        return Plan(actions=ruling.actions, wake_at=ruling.wake_at)
    is_news = phase not in (before.phase, "Pending")
    event = Event(type="Warning" if phase == "Failed" else "Normal", reason=phase, message=message)
    return Plan(actions=ruling.actions, status=status, events=(event,) if is_news else (), wake_at=ruling.wake_at)


def _conditions(phase: TestPhase, reason: str, message: str) -> list[Wanted]:
    if phase == "Completed":
        return [*ready(phase, message), ("Succeeded", "True", phase, message)]
    if phase == "Failed":
        return [*stalled(phase, message), ("Succeeded", "False", phase, message)]
    return reconciling(reason or phase, message)
