"""A run seen as its parts: the API server, the trainer and each environment, with their pods and their record."""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

import msgspec
from msgspec import Struct

from clotho.api.names import API_SERVER, ENVIRONMENT, EXPORTER, TRAINER, Component
from clotho.api.status import ComponentStatus, Retry
from clotho.api.training_run import TrainingRun
from clotho.plan.model import Observed
from clotho.plan.pods import Pod

_TITLES: Final[dict[Component, str]] = {
    API_SERVER: "the API server",
    TRAINER: "the trainer",
    EXPORTER: "the exporter",
}


class Part(Struct, frozen=True, kw_only=True):
    component: Component
    name: str  # api-server, trainer, or the environment's name
    replicas: int
    pods: tuple[Pod, ...]
    ready: int  # how many of the pods asked for are ready
    is_alive: bool  # somebody is at work, ready or not
    replaced: int  # retries whose pods are gone, as they should be: their places are free
    record: ComponentStatus  # as stored; a policy answers with a copy that says more

    @property
    def title(self) -> str:
        if self.component == ENVIRONMENT:
            return f"environment {self.name}"
        return _TITLES[self.component]

    @property
    def is_ready(self) -> bool:
        return self.ready >= self.replicas

    def retry_of(self, pod: Pod) -> Retry | None:
        return next((retry for retry in self.record.retries if retry.uid == pod.uid), None)

    def with_record(self, **changes: object) -> "Part":
        return msgspec.structs.replace(self, record=msgspec.structs.replace(self.record, **changes))


class Parts(Struct, frozen=True, kw_only=True):
    api_server: Part
    trainer: Part
    environments: tuple[Part, ...]

    def __iter__(self) -> Iterator[Part]:
        """In the order in which they depend on each other; a stop goes the other way round."""
        yield self.api_server
        yield self.trainer
        yield from self.environments

    def replace(self, changed: Iterable[Part]) -> "Parts":
        by_name = {(part.component, part.name): part for part in changed}
        return Parts(
            api_server=by_name.get((API_SERVER, API_SERVER), self.api_server),
            trainer=by_name.get((TRAINER, TRAINER), self.trainer),
            environments=tuple(by_name.get((ENVIRONMENT, part.name), part) for part in self.environments),
        )


def parts_of(run: TrainingRun, observed: Observed) -> Parts:
    stored = run.status.components
    environments = {record.name: record for record in stored.environments} if stored else {}
    grouped: dict[tuple[str, str], list[Pod]] = {}
    for pod in observed.pods:
        grouped.setdefault((pod.component, pod.environment), []).append(pod)

    def part(component: Component, name: str, environment: str, replicas: int, record: ComponentStatus | None) -> Part:
        pods = sorted(grouped.get((component, environment), ()), key=attrgetter("index"))
        return _part(component, name, pods, replicas, record)

    return Parts(
        api_server=part(
            API_SERVER, API_SERVER, "", 0 if run.spec.is_inline else 1, stored.api_server if stored else None
        ),
        trainer=part(TRAINER, TRAINER, "", 1, stored.trainer if stored else None),
        environments=tuple(
            part(ENVIRONMENT, each.name, each.name, each.replicas, environments.get(each.name))
            for each in run.spec.environments
        ),
    )


def exporter_of(run: TrainingRun, observed: Observed, pod_name: str, *, forget: bool) -> Part:
    """Beside the parts, not among them: it is there when they are done. `forget`: it is another export's record."""
    stored = run.status.components
    record = stored.exporter if stored and not forget else None
    pods = [pod for pod in observed.pods if pod.component == EXPORTER and pod.name == pod_name]
    return _part(EXPORTER, EXPORTER, pods, 1, record)


def _part(component: Component, name: str, pods: list[Pod], replicas: int, record: ComponentStatus | None) -> Part:
    seen = {pod.uid for pod in pods}
    record = record or ComponentStatus(name=name, state="Missing")
    waiting = tuple(retry for retry in record.retries if retry.uid in seen)
    replaced = len(record.retries) - len(waiting)
    if replaced:
        record = msgspec.structs.replace(record, retries=waiting)
    return Part(
        component=component,
        name=name,
        replicas=replicas,
        pods=tuple(pods),
        ready=sum(pod.is_ready for pod in pods if pod.index < replicas),
        is_alive=replicas == 0 or any(pod.is_running for pod in pods),
        replaced=replaced,
        record=record,
    )
