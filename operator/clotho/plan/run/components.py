"""The components of a run: API server, trainer, inference replicas, environments, with their pods and their record."""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho.api.names import (
    API_SERVER,
    COMPONENT_LABEL,
    ENVIRONMENT,
    ENVIRONMENT_LABEL,
    EXPORTER,
    INDEX_LABEL,
    INFERENCE,
    TRAINER,
    Component,
)
from clotho.api.status import AutoscalingStatus, ComponentStatus, Retry, TrainerStatus
from clotho.api.training_run import EnvironmentSpec, TrainingRun
from clotho.plan.model import Observed
from clotho.plan.pods import Pod
from clotho.render.names import pod_name

_TITLES: Final[dict[Component, str]] = {
    API_SERVER: "the API server",
    TRAINER: "the trainer",
    INFERENCE: "inference",
    EXPORTER: "the exporter",
}


class RunComponent(Struct, frozen=True, kw_only=True):
    kind: Component
    name: str  # api-server, trainer, inference, or the environment's name
    replicas: int
    pods: tuple[Pod, ...]
    ready: int  # how many of the pods asked for are ready
    is_alive: bool  # enough pods are running, ready or not, for the run to go on
    replaced: int  # retries whose pods are gone, as they should be: their places are free
    record: ComponentStatus  # as stored; policies return a changed copy
    is_optional: bool = False  # the run goes on without it

    @property
    def title(self) -> str:
        if self.kind == ENVIRONMENT:
            return f"environment {self.name}"
        return _TITLES[self.kind]

    @property
    def environment(self) -> str:
        """Its name; empty for the other components."""
        return self.name if self.kind == ENVIRONMENT else ""

    @property
    def is_ready(self) -> bool:
        return self.ready >= self.replicas

    @property
    def is_gang(self) -> bool:
        """A trainer of several pods: none of them can work without the others. See gang.py."""
        return self.kind == TRAINER and self.replicas > 1

    def title_of(self, pod: Pod) -> str:
        if self.kind == INFERENCE:
            return f"inference replica {pod.index}"
        return f"{self.title} (pod {pod.index})" if self.is_gang else self.title

    def retry_of(self, pod: Pod) -> Retry | None:
        return next((retry for retry in self.record.retries if retry.uid == pod.uid), None)

    def with_record(self, **changes: object) -> "RunComponent":
        return msgspec.structs.replace(self, record=msgspec.structs.replace(self.record, **changes))


class RunComponents(Struct, frozen=True, kw_only=True):
    api_server: RunComponent
    trainer: RunComponent
    inference: RunComponent
    environments: tuple[RunComponent, ...]

    def __iter__(self) -> Iterator[RunComponent]:
        """In the order in which they depend on each other; a stop goes the other way round."""
        yield self.api_server
        yield self.trainer
        yield self.inference
        yield from self.environments

    def replace(self, changed: Iterable[RunComponent]) -> "RunComponents":
        by_name = {(component.kind, component.name): component for component in changed}
        return RunComponents(
            api_server=by_name.get((API_SERVER, API_SERVER), self.api_server),
            trainer=by_name.get((TRAINER, TRAINER), self.trainer),
            inference=by_name.get((INFERENCE, INFERENCE), self.inference),
            environments=tuple(
                by_name.get((ENVIRONMENT, component.name), component) for component in self.environments
            ),
        )


def components_of(run: TrainingRun, observed: Observed) -> RunComponents:
    stored = run.status.components
    environments = {record.name: record for record in stored.environments} if stored else {}
    chosen = {each.name: each for each in run.status.autoscaling}
    replicas = {each.name: wanted_replicas(each, chosen.get(each.name)) for each in run.spec.environments}
    grouped: dict[tuple[str, str], list[Pod]] = {}
    for pod in _recognised(run, replicas, observed.pods):
        grouped.setdefault((pod.component, pod.environment), []).append(pod)

    def pods_of(kind: Component, environment: str = "") -> list[Pod]:
        return sorted(grouped.get((kind, environment), ()), key=attrgetter("index"))

    return RunComponents(
        api_server=_component(
            API_SERVER,
            API_SERVER,
            pods_of(API_SERVER),
            0 if run.spec.is_inline else 1,
            stored.api_server if stored else None,
        ),
        trainer=_component(
            TRAINER, TRAINER, pods_of(TRAINER), run.spec.trainer.replicas, stored.trainer if stored else None
        ),
        inference=_component(
            INFERENCE,
            INFERENCE,
            pods_of(INFERENCE),
            run.spec.inference.replicas,
            stored.inference if stored else None,
            is_optional=run.spec.trainer.sharding == "none",  # the trainer serves all requests then
        ),
        environments=tuple(
            _component(
                ENVIRONMENT,
                each.name,
                pods_of(ENVIRONMENT, each.name),
                replicas[each.name],
                environments.get(each.name),
            )
            for each in run.spec.environments
        ),
    )


def _recognised(run: TrainingRun, environments: Mapping[str, int], pods: Iterable[Pod]) -> Iterator[Pod]:
    """With the labels that belong to their names: those in the cluster may have been edited, and are repaired later."""
    wanted: list[tuple[Component, str, int]] = [
        (API_SERVER, "", 1),
        (TRAINER, "", run.spec.trainer.replicas),
        (INFERENCE, "", run.spec.inference.replicas),
        *((ENVIRONMENT, name, count) for name, count in environments.items()),
    ]
    places = {
        pod_name(run.metadata, kind, environment, index): (kind, environment, index)
        for kind, environment, count in wanted
        for index in range(count)
    }
    for pod in pods:
        found = pod.component, pod.environment, pod.index
        place = places.get(pod.name, found)
        yield pod if place == found else _labelled(pod, *place)


def _labelled(pod: Pod, kind: str, environment: str, index: int) -> Pod:
    labels = {COMPONENT_LABEL: kind, ENVIRONMENT_LABEL: environment, INDEX_LABEL: str(index)}
    metadata = msgspec.structs.replace(pod.metadata, labels={**pod.metadata.labels, **labels})
    return msgspec.structs.replace(pod, metadata=metadata)


def trainer_record(trainer: RunComponent) -> TrainerStatus:
    return trainer.record if isinstance(trainer.record, TrainerStatus) else TrainerStatus(name=TRAINER, state="Missing")


def is_done_early(pod: Pod) -> bool:
    """A follower that finished, perhaps before the trainer's first pod: that one decides how the training ends."""
    reported = pod.termination if pod.is_follower and pod.status.phase == "Succeeded" else None
    return reported is not None and reported.reason == "Finished"


def wanted_replicas(environment: EnvironmentSpec, chosen: AutoscalingStatus | None) -> int:
    """What autoscaling has chosen, within what the spec allows now."""
    target = chosen.target if chosen is not None else environment.replicas
    return min(max(environment.replicas, target), environment.most_replicas)


def exporter_of(run: TrainingRun, observed: Observed, pod_name: str, *, forget: bool) -> RunComponent:
    """Not one of the run's components: it starts when they have ended. `forget`: the record is of another export."""
    stored = run.status.components
    record = stored.exporter if stored and not forget else None
    pods = [pod for pod in observed.pods if pod.component == EXPORTER and pod.name == pod_name]
    return _component(EXPORTER, EXPORTER, pods, 1, record)


def _component(
    kind: Component,
    name: str,
    pods: list[Pod],
    replicas: int,
    record: ComponentStatus | None,
    *,
    is_optional: bool = False,
) -> RunComponent:
    if kind in (INFERENCE, ENVIRONMENT) and record is not None:
        replicas = min([replicas, *_places_being_removed(pods, record)])
    seen = {pod.uid for pod in pods}
    record = record or (TrainerStatus if kind == TRAINER else ComponentStatus)(name=name, state="Missing")
    waiting = tuple(retry for retry in record.retries if retry.uid in seen)
    replaced = len(record.retries) - len(waiting)
    if replaced:
        record = msgspec.structs.replace(record, retries=waiting)
    running = sum(pod.is_running or is_done_early(pod) for pod in pods)
    return RunComponent(
        kind=kind,
        name=name,
        replicas=replicas,
        pods=tuple(pods),
        ready=sum(pod.is_ready for pod in pods if pod.index < replicas),
        is_alive=is_optional or running >= (replicas if kind == TRAINER else min(replicas, 1)),
        replaced=replaced,
        record=record,
        is_optional=is_optional,
    )


def _places_being_removed(pods: list[Pod], record: ComponentStatus) -> Iterator[int]:
    """Of replicas that were scaled away. They are asked for again once their pods are gone, whose end is no loss."""
    return (pod.index for pod in pods if pod.is_terminating and pod.index >= record.replicas)


def template_of(run: TrainingRun, component: RunComponent) -> tuple[str, dict[str, Any]]:
    """With its place in the spec."""
    if component.kind == API_SERVER:
        return "apiServer.template", run.spec.api_server.template
    if component.kind in (TRAINER, INFERENCE):
        return "trainer.template", run.spec.trainer.template
    found = next((each.template for each in run.spec.environments if each.name == component.name), {})
    return f"environments.{component.name}.template", found
