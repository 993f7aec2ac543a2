"""The life of a run, read from top to bottom."""

from datetime import datetime

from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.plan.model import Observed, Plan
from clotho.plan.settings import PlanSettings


def plan(run: TrainingRun | UnreadableRun, observed: Observed, now: datetime, settings: PlanSettings) -> Plan:
    """Decide what happens next to `run`. Pure: the same arguments give the same plan; `now` is timezone-aware UTC.

    Once its actions and status are written and observed, a second call plans nothing but a time to look again.
    """
    del run, observed, now, settings
    return Plan()
