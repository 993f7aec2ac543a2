"""Where the memory limit of a pod that was OOMKilled comes from, so that people know what to raise."""

from typing import Any

import msgspec

from clotho.api.training_run import TrainingRun
from clotho.plan.failures import Failure, classify
from clotho.plan.pods import Pod
from clotho.plan.run.components import RunComponent, template_of

OOM_KILLED = "OOMKilled"


def classify_with_limit(run: TrainingRun, component: RunComponent, pod: Pod) -> Failure:
    failure = classify(component.title_of(pod), pod)
    if failure.reason != OOM_KILLED:
        return failure
    explanation = f"{failure.explanation} ({memory_limit(run, component, pod)})"
    return msgspec.structs.replace(failure, explanation=explanation)


def memory_limit(run: TrainingRun, component: RunComponent, pod: Pod) -> str:
    """`limit 200Mi, set in trainer.template`."""
    killed = [
        each.name for each in pod.containers if each.state.terminated and each.state.terminated.reason == OOM_KILLED
    ]
    limits = {each.name: each.resources.limits.get("memory") for each in pod.spec.containers if each.name in killed}
    name, limit = next(iter(limits.items()), ("", None))
    where, template = template_of(run, component)
    if limit is None:
        return f"no limit of its own, so its node ran out; set one in {where}"
    return f"limit {limit}, set in {where}" if _sets_limit(template, name) else f"limit {limit}; raise it in {where}"


def _sets_limit(template: dict[str, Any], container: str) -> bool:
    """The pod was rendered from it, so it has the shape of a pod."""
    containers = (template.get("spec") or {}).get("containers") or ()
    found: dict[str, Any] = next((each for each in containers if each["name"] == container), {})
    return "memory" in ((found.get("resources") or {}).get("limits") or {})
