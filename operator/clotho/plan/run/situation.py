"""Everything that the policies look at, gathered once, and the shape of what they decide."""

from datetime import datetime

from msgspec import Struct

from clotho.api.phases import Phase
from clotho.api.status import (
    AutoscalingStatus,
    ExportStatus,
    PolicyInForce,
    ResolvedEnvironment,
    StallStatus,
    TrainingRunStatus,
)
from clotho.api.training_run import TrainingRun
from clotho.plan.model import Action, Event, Observed, SetSteps
from clotho.plan.pods import Pod
from clotho.plan.run.components import RunComponent, RunComponents
from clotho.plan.settings import PlanSettings
from clotho_contract.progress import Progress
from clotho_contract.termination import Termination


class Situation(Struct, frozen=True, kw_only=True):
    run: TrainingRun  # its status as suspend.py wants it seen, its spec with what policy.py fills in
    stored: TrainingRunStatus  # its status as it stands in the cluster
    observed: Observed
    components: RunComponents
    now: datetime
    settings: PlanSettings
    policy: PolicyInForce | None = None  # that the run starts or was started under,
    violations: tuple[str, ...] = ()  # where it goes against it, or against what its Environments say
    ignores_reports: bool = False  # what the trainer reported cannot be processed
    waiting_for: str = ""  # an Environment that is not there, or not described yet

    @property
    def moment(self) -> datetime:
        """`now` in whole seconds, as it is written into a status."""
        return self.now.replace(microsecond=0)

    @property
    def trainer_pod(self) -> Pod | None:
        """The first of several: it alone reports and writes checkpoints."""
        return next((pod for pod in self.components.trainer.pods if pod.index == 0), None)

    @property
    def termination(self) -> Termination | None:
        if self.ignores_reports:
            return None
        return self.trainer_pod.termination if self.trainer_pod else None

    @property
    def progress(self) -> Progress | None:
        """The present trainer's termination message, else its last answer; reports of earlier trainers do not count."""
        if self.ignores_reports:
            return None
        if self.termination is not None and self.termination.progress is not None:
            return self.termination.progress
        probe, pod = self.observed.probes.trainer, self.trainer_pod
        return probe.answer if probe is not None and pod is not None and probe.pod_uid == pod.uid else None

    @property
    def has_read_checkpoint(self) -> bool:
        """The present trainer has reported the step it continues from."""
        return self.progress is not None and self.progress.state != "loading"

    @property
    def total_steps(self) -> int:
        """As many as the spec asks for; fewer where the data ends before, which only the trainer knows."""
        asked, inline = self.run.spec.training.steps, self.run.spec.inline
        if inline is None or not inline.dataset.epochs:
            return asked
        report, stored = self.progress, self.run.status.progress
        return min(asked, (report and report.total_steps) or (stored and stored.total_steps) or asked)


class Decision(Struct, frozen=True, kw_only=True):
    """What a policy decided: the status is composed from it, the actions are carried out as they are."""

    phase: Phase
    reason: str  # CamelCase, for the conditions
    message: str  # a sentence for people
    components: RunComponents
    actions: tuple[Action, ...] = ()
    notices: tuple[Event, ...] = ()
    is_stalled: bool = False  # nothing will move without help: kstatus' Stalled
    is_refused: bool = False
    stall: StallStatus | None = None
    export: ExportStatus | None = None
    exporter: RunComponent | None = None
    autoscaling: tuple[AutoscalingStatus, ...] | None = None  # None: as before
    policy: PolicyInForce | None = None  # taken into the status when the run gets its place,
    resolved: tuple[ResolvedEnvironment, ...] = ()  # and so are its Environments
    queued_since: datetime | None = None
    is_in_kueue: bool = False  # without pods: its clocks start when it is admitted
    set_steps: SetSteps | None = None
    wake_at: datetime | None = None


def fail(situation: Situation, reason: str, message: str, components: RunComponents | None = None) -> Decision:
    return Decision(
        phase="Failed", reason=reason, message=message, is_stalled=True, components=components or situation.components
    )
