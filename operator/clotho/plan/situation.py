"""Everything that the policies look at, gathered once, and the shape of what they decide."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from clotho.api.status import ExportStatus, Phase, PolicyInForce, ResolvedEnvironment, StallStatus, TrainingRunStatus
from clotho.api.training_run import TrainingRun
from clotho.plan.model import Action, Event, Observed
from clotho.plan.parts import Part, Parts
from clotho.plan.pods import Pod
from clotho.plan.settings import PlanSettings
from clotho_contract.progress import Progress
from clotho_contract.termination import Termination


class Situation(Struct, frozen=True, kw_only=True):
    run: TrainingRun  # its status as suspend.py wants it seen, its spec with what policy.py fills in
    stored: TrainingRunStatus  # its status as it stands in the cluster
    observed: Observed
    parts: Parts
    now: datetime
    settings: PlanSettings
    policy: PolicyInForce | None = None  # that the run starts or was started under,
    violations: tuple[str, ...] = ()  # where it goes against it, or against what its Environments say
    waiting_for: str = ""  # an Environment that is not there, or not described yet

    @property
    def moment(self) -> datetime:
        """`now` in whole seconds, as it is written into a status."""
        return self.now.replace(microsecond=0)

    @property
    def trainer_pod(self) -> Pod | None:
        return self.parts.trainer.pods[0] if self.parts.trainer.pods else None

    @property
    def last_words(self) -> Termination | None:
        return self.trainer_pod.last_words if self.trainer_pod else None

    @property
    def progress(self) -> Progress | None:
        """The present trainer's last words, else its last answer; what an earlier one said does not count."""
        if self.last_words is not None and self.last_words.progress is not None:
            return self.last_words.progress
        probe, pod = self.observed.probes.trainer, self.trainer_pod
        return probe.answer if probe is not None and pod is not None and probe.pod_uid == pod.uid else None

    @property
    def total_steps(self) -> int:
        """As many as the spec asks for; fewer where the data ends before, which only the trainer knows."""
        asked, inline = self.run.spec.training.steps, self.run.spec.inline
        if inline is None or not inline.dataset.epochs:
            return asked
        said, stored = self.progress, self.run.status.progress
        return min(asked, (said and said.total_steps) or (stored and stored.total_steps) or asked)


class Decision(Struct, frozen=True, kw_only=True):
    """What a policy wants: the status is composed from it, the actions are carried out as they are."""

    phase: Phase
    reason: str  # CamelCase, for the conditions
    message: str  # a sentence for people
    parts: Parts
    actions: tuple[Action, ...] = ()
    notices: tuple[Event, ...] = ()
    is_stuck: bool = False  # nothing will move without help: kstatus' Stalled
    is_refused: bool = False
    stall: StallStatus | None = None
    export: ExportStatus | None = None
    exporter: Part | None = None
    policy: PolicyInForce | None = None  # taken into the status when the run gets its place,
    resolved: tuple[ResolvedEnvironment, ...] = ()  # and so are its Environments
    queued_since: datetime | None = None
    wake_at: datetime | None = None


def fail(situation: Situation, reason: str, message: str, parts: Parts | None = None) -> Decision:
    return Decision(phase="Failed", reason=reason, message=message, is_stuck=True, parts=parts or situation.parts)


def earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def later(start: datetime, seconds: float) -> datetime:
    return start + timedelta(seconds=seconds)


def sentence(text: str) -> str:
    """Capital letter and full stop, whatever other people's words look like."""
    text = " ".join(text.split())
    return text if not text else text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")
