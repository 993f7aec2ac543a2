"""A higher `training.steps` reaches the trainer at once; the mounted config file, its fallback, lags behind."""

from clotho.plan.model import SetSteps
from clotho.plan.run.situation import Situation


def raise_steps(situation: Situation) -> SetSteps | None:
    """Trainers that report no configured number cannot be asked to change it."""
    pod, report, asked = situation.trainer_pod, situation.progress, situation.run.spec.training.steps
    if pod is None or not pod.is_running or not pod.status.pod_ip or report is None:
        return None
    if report.configured_steps in (0, asked):
        return None
    return SetSteps(pod_uid=pod.uid, address=pod.status.pod_ip, steps=asked)
