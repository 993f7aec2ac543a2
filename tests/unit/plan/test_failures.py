"""How the failure of a pod is classified."""

from typing import Any

import pytest

from clotho.api.status import ComponentStatus
from clotho.plan.failures import classify
from clotho.plan.pods import parse_pod
from clotho.plan.run.components import RunComponent
from clotho_contract import termination
from clotho_contract.progress import Progress
from clotho_contract.termination import Termination

Body = dict[str, Any]


def trainer(status: Body) -> RunComponent:
    pod = parse_pod({"metadata": {"name": "t", "uid": "u"}, "spec": {"nodeName": "n1"}, "status": status})
    record = ComponentStatus(name="trainer", state="Failed")
    return RunComponent(
        kind="trainer", name="trainer", replicas=1, pods=(pod,), ready=0, is_alive=False, replaced=0, record=record
    )


def exited(code: int, message: str = "", reason: str = "Error", name: str = "main", **more: Any) -> Body:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message, **more}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": name, "state": state}]}


def disrupted(reason: str) -> Body:
    return exited(143) | {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


FINISHED_AT_400 = termination.encode(
    Termination(
        reason="Finished",
        message="all 400 steps are done and saved",
        step=400,
        progress=Progress(state="finished", step=400, total_steps=400, configured_steps=400),
    )
).decode()


@pytest.mark.parametrize(
    ("status", "reason", "words", "permanent", "free"),
    [
        (exited(137, reason="OOMKilled"), "OOMKilled", "ran out of memory", False, False),
        (exited(1), "Error", "failed (exit code 1)", False, False),
        (exited(139, signal=11), "Error", "exit code 139, signal 11", False, False),
        (exited(1, "plain text of another image"), "Error", "plain text of another image", False, False),
        (
            exited(2, '{"reason": "InvalidConfig", "message": "lora.rank 0 with nf4"}'),
            "InvalidConfig",
            "(InvalidConfig): lora.rank 0 with nf4",
            True,
            False,
        ),
        (
            exited(1, '{"reason": "NonFiniteLoss", "message": "loss is nan", "step": 41}'),
            "NonFiniteLoss",
            "failed at step 41 (NonFiniteLoss): loss is nan",
            False,
            False,
        ),
        (
            exited(1, '{"reason": "DependencyUnavailable", "message": "no API server"}'),
            "DependencyUnavailable",
            "no API server",
            False,
            True,
        ),
        (exited(0), "EndedEarly", "ended before the run was done (exit code 0)", False, False),
        (
            exited(0, '{"reason": "Finished", "message": "", "step": 40}'),
            "EndedEarly",
            "ended at step 40 before the run was done",
            False,
            False,
        ),
        (
            exited(0, FINISHED_AT_400),
            "StepsRaised",
            "ended at step 400, the last one before training.steps was raised",
            False,
            True,
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "node low on memory"}, "Evicted", "node n1", False, True),
        ({"phase": "Failed", "reason": "NodeLost"}, "NodeLost", "was lost on node n1", False, True),
        ({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}, "NotAdmitted", "NotAdmitted", False, True),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "NotAdmitted", "NotAdmitted", False, True),
        ({"phase": "Failed", "reason": "NodeAffinity"}, "NotAdmitted", "NotAdmitted", False, True),
        (disrupted("PreemptionByScheduler"), "Preempted", "Preempted", False, True),
        (disrupted("DeletionByTaintManager"), "NodeLost", "NodeLost", False, True),
        (disrupted("TerminationByKubelet"), "Evicted", "Evicted", False, True),
        (disrupted("SomethingNew"), "Evicted", "Evicted", False, True),
        ({"phase": "Failed"}, "Error", "no container status", False, False),
    ],
)
def test_pod_failures_are_classified(status: Body, reason: str, words: str, permanent: bool, free: bool) -> None:
    component = trainer(status)
    failure = classify(component.title, component.pods[0])
    assert failure.reason == reason
    assert words in failure.explanation
    assert (failure.is_permanent, failure.is_infrastructure) == (permanent, free)


def test_the_failed_container_is_named() -> None:
    status = exited(0) | {"initContainerStatuses": exited(3, name="wait")["containerStatuses"]}
    component = trainer(status)
    assert "(container wait) failed (exit code 3)" in classify(component.title, component.pods[0]).explanation


def test_a_long_message_is_cut() -> None:
    component = trainer(exited(1, "x" * 4000))
    assert len(classify(component.title, component.pods[0]).explanation) < 600
