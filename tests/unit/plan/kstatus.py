"""How Flux, Helm and others read an object's status (kstatus), for the components that apply to ours."""

from typing import Literal

from clotho.api.environment import Environment
from clotho.api.inference_tests import InferenceTest
from clotho.api.training_run import TrainingRun

Verdict = Literal["Terminating", "InProgress", "Failed", "Current"]


def kstatus(run: TrainingRun | Environment | InferenceTest) -> Verdict:
    if run.metadata.deletion_timestamp is not None:
        return "Terminating"
    if run.status.observed_generation != run.metadata.generation:
        return "InProgress"
    truths = {condition.type: condition.status for condition in run.status.conditions}
    assert len(truths) == len(run.status.conditions), "a condition appears twice"
    assert not (truths.get("Reconciling") == "True" and truths.get("Stalled") == "True")
    assert not (truths.get("Ready") == "True" and "True" in (truths.get("Reconciling"), truths.get("Stalled")))
    if truths.get("Reconciling") == "True":
        return "InProgress"
    if truths.get("Stalled") == "True":
        return "Failed"
    if "Ready" in truths:
        return "Current" if truths["Ready"] == "True" else "InProgress"
    return "Current"
