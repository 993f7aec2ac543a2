"""Everything that a live run needs and that is not there is made, all at once; the pods wait inside for each other."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final

from clotho.api.names import (
    API_SERVER,
    ENVIRONMENT,
    FINGERPRINT_ANNOTATION,
    INFERENCE,
    TOKENS_ANNOTATION,
    TRAINER,
    Component,
)
from clotho.api.training_run import TrainingRun
from clotho.plan.drift import repair
from clotho.plan.model import Action, Apply, Create, Delete, Kind, Manifest, ObjectKey, ObjectSeen, delete_pod
from clotho.plan.ownership import is_marked
from clotho.plan.pods import Pod
from clotho.plan.run.accounting import vanished
from clotho.plan.run.completion import has_trained_enough
from clotho.plan.run.components import RunComponent
from clotho.plan.run.gang import open_places
from clotho.plan.run.placement import place
from clotho.plan.run.revision import is_outdated
from clotho.plan.run.situation import Situation
from clotho.plan.run.stop import delete_live, stages
from clotho.render import objects, pods
from clotho.render.config import run_config
from clotho.render.merge import TemplateError
from clotho.render.names import base_name, claim_name

_CREATED_TOGETHER: Final = timedelta(seconds=2)  # whole seconds, by the clocks of two API servers


def make_missing(situation: Situation) -> tuple[Action, ...]:
    """The wall before the pods behind it, the config before those who read it."""
    return (*_objects(situation), *_pods(situation))


def _objects(situation: Situation) -> Iterator[Action]:
    run, seen = situation.run, situation.observed.objects
    yield from write_config(situation)
    has_replicas = run.spec.inference.replicas > 0
    makers: tuple[tuple[Kind, Callable[[TrainingRun], Manifest], bool], ...] = (
        ("NetworkPolicy", objects.trainer_policy, run.spec.topology.size > 1 or has_replicas),
        ("NetworkPolicy", objects.inference_policy, has_replicas),
        ("NetworkPolicy", objects.network_policy, not run.spec.is_inline),
        ("Service", objects.service, True),
        ("PodDisruptionBudget", objects.disruption_budget, run.spec.trainer.disruption_budget),
    )
    for kind, make, is_needed in makers:
        manifest = make(run)
        key = ObjectKey(kind, manifest["metadata"]["name"])
        if is_needed or key in seen:  # never deleted before the run is, but kept as the spec has it by now
            yield from repair(key, manifest, seen)
    yield from _egress(situation)
    yield from _claims(situation)


def _egress(situation: Situation) -> Iterator[Action]:
    """A policy that is there without egress by now is emptied."""
    run, seen = situation.run, situation.observed.objects
    for environment in run.spec.environments:
        key = ObjectKey("NetworkPolicy", objects.egress_name(run, environment.name))
        if environment.egress or key in seen:
            yield from repair(key, objects.egress_policy(run, environment, situation.settings.render), seen)


def write_config(situation: Situation) -> Iterator[Action]:
    """Again when the spec has changed: the trainer re-reads `training.steps`, the exporter reads `export`."""
    run, seen = situation.run, _secret(situation)
    key = ObjectKey("Secret", base_name(run.metadata))
    manifest = objects.secret(run, run_config(run, situation.settings.render.cluster_domain))
    if seen is None:
        yield Create(key=key, manifest=manifest, random_keys=objects.TOKEN_KEYS)
    elif not seen.is_terminating and _has_drifted(seen, manifest):
        yield Apply(key=key, manifest=manifest, random_keys=objects.TOKEN_KEYS)


def _secret(situation: Situation) -> ObjectSeen | None:
    return situation.observed.objects.get(ObjectKey("Secret", base_name(situation.run.metadata)))


def _has_drifted(secret: ObjectSeen, rendered: Manifest) -> bool:
    is_same = secret.contents == objects.contents_digest(rendered["data"][objects.CONFIG_KEY])
    return not (is_same and secret.has_tokens and is_marked(secret.labels, secret.owners, rendered["metadata"]))


def _claims(situation: Situation) -> Iterator[Create | Delete]:
    """An empty claim of another size or class than the spec has by now is made again; one that lost a label or its
    owner gets them back."""
    for key, manifest in _wanted_claims(situation):
        seen = situation.observed.objects.get(key)
        if seen is None:
            yield Create(key=key, manifest=manifest)
        elif seen.is_terminating:
            continue
        elif _is_outdated_claim(situation, key, manifest):
            yield Delete(key=key, uid=seen.uid, resource_version=seen.resource_version)
        elif not is_marked(seen.labels, seen.owners, manifest["metadata"]):
            yield Create(key=key, manifest=manifest)


def _wanted_claims(situation: Situation) -> Iterator[tuple[ObjectKey, Manifest]]:
    run = situation.run
    if run.spec.storage.ephemeral:
        return
    components: tuple[Component, ...] = (TRAINER,) if run.spec.is_inline else (API_SERVER, TRAINER)
    for component in components:
        is_brought_along = component == TRAINER and run.spec.storage.claim_name
        if not is_brought_along:
            yield ObjectKey("PersistentVolumeClaim", claim_name(run.metadata, component)), objects.claim(run, component)


def _is_outdated_claim(situation: Situation, key: ObjectKey, wanted: Manifest) -> bool:
    """Only of a run whose trainer has never started: nothing is on the claim then."""
    seen = situation.observed.objects.get(key)
    if seen is None or situation.run.status.attempt or situation.components.trainer.pods:
        return False
    fingerprint = wanted["metadata"]["annotations"][FINGERPRINT_ANNOTATION]
    return seen.is_terminating or seen.fingerprint not in ("", fingerprint)


def _pods(situation: Situation) -> Iterator[Create]:
    yield from _unmarked_pods(situation)
    secret = _secret(situation)
    if secret is not None and not secret.has_tokens:
        return  # they are made first
    if any(_is_void(situation, pod) for component in situation.components for pod in component.pods):
        return  # a pod with the new token could not talk to one with the old
    if any(_is_outdated_claim(situation, *claim) for claim in _wanted_claims(situation)):
        return  # a pod that names a claim would keep it from being deleted
    for component in situation.components:
        if component.kind in (INFERENCE, ENVIRONMENT) and has_trained_enough(situation):
            continue
        missing = _missing(situation, component)
        gone = vanished(situation, component, missing)
        expected = len(missing) - gone
        for count, index in enumerate(missing, start=1):
            restarts = component.record.restarts + (gone if component.is_gang else max(0, count - expected))
            yield _create_pod(situation, component, index, restarts)


def _unmarked_pods(situation: Situation) -> Iterator[Create]:
    """Pods that exist under their names but lost a label or their owner: creating them puts both back."""
    by_name = {pod.name: pod for pod in situation.observed.pods}
    for component in situation.components:
        for index in range(component.replicas):
            marks = pods.identity(situation.run, component.kind, component.environment, index)
            pod = by_name.get(marks["name"])
            if pod is not None and not pod.is_terminating and not is_marked(pod.metadata.labels, pod.owners, marks):
                yield _create_pod(situation, component, index, component.record.restarts)


def _create_pod(situation: Situation, component: RunComponent, index: int, restarts: int) -> Create:
    manifest = render_pod(situation, component, index, restarts)
    return Create(key=ObjectKey("Pod", manifest["metadata"]["name"]), manifest=manifest)


def _missing(situation: Situation, component: RunComponent) -> list[int]:
    if component.is_gang:
        return open_places(situation, component)
    taken = {pod.index for pod in component.pods}
    return [index for index in range(component.replicas) if index not in taken]


def render_pod(situation: Situation, component: RunComponent, index: int, restarts: int) -> Manifest:
    manifest = place(situation, component, render_anywhere(situation, component, index, restarts))
    if (secret := _secret(situation)) is not None and secret.token_revision:
        manifest["metadata"]["annotations"][TOKENS_ANNOTATION] = secret.token_revision
    return manifest


def render_anywhere(situation: Situation, component: RunComponent, index: int, restarts: int) -> Manifest:
    """As long as Kueue has not decided where its pods go."""
    run, settings = situation.run, situation.settings.render
    if component.kind == API_SERVER:
        return pods.api_server_pod(run, settings, restarts)
    if component.kind == TRAINER:
        attempt = max((pod.attempt for pod in component.pods), default=run.status.attempt + 1)
        return pods.trainer_pod(run, settings, restarts, attempt, index)
    if component.kind == INFERENCE:
        return pods.inference_pod(run, index, settings, restarts)
    spec = next(each for each in run.spec.environments if each.name == component.name)
    return pods.environment_pod(run, spec, index, settings, restarts)


def unrenderable_templates(situation: Situation) -> tuple[str, ...]:
    """Of a run without pods, so that a template is refused before the run is queued or waits for anything."""
    if any(component.pods for component in situation.components):
        return ()
    found = (_template_problem(situation, component) for component in situation.components)
    return tuple(dict.fromkeys(filter(None, found)))  # the trainer's template is that of the inference replicas, too


def _template_problem(situation: Situation, component: RunComponent) -> str:
    try:
        render_pod(situation, component, 0, 0)
    except TemplateError as error:
        return str(error)
    return ""


def remove_surplus(situation: Situation) -> tuple[Delete, ...]:
    """Replicas beyond those asked for; and, in the order of a stop, pods whose token or spec is void."""
    surplus = tuple(
        delete_pod(pod)
        for component in situation.components
        for pod in component.pods
        if pod.index >= component.replicas and not pod.is_terminating
    )
    placed = {pod.uid for component in situation.components for pod in component.pods}
    removed = tuple(
        delete_pod(pod)
        for pod in situation.observed.pods
        if pod.component == ENVIRONMENT and pod.uid not in placed and not pod.is_terminating
    )
    return (*surplus, *removed, *delete_live(next(stages(situation, lambda pod: _is_void(situation, pod)), ())))


def remove_outdated(situation: Situation) -> tuple[Delete, ...]:
    """All at once: their trainer has not started, so there is no order to keep."""
    pods = situation.observed.pods
    return tuple(delete_pod(pod) for pod in pods if is_outdated(situation.run, pod) and not pod.is_terminating)


def _is_void(situation: Situation, pod: Pod) -> bool:
    """The Secret, or a token in it, was made again since; or the spec was changed before the trainer started."""
    if is_outdated(situation.run, pod):
        return True
    secret, created = _secret(situation), pod.metadata.creation_timestamp
    if secret is None or created is None:
        return False
    return created < secret.created_at - _CREATED_TOGETHER or pod.token_revision != secret.token_revision
