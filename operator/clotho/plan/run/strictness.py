"""Misspelt fields deep inside a template: the API server would drop them, so it is asked first to refuse them."""

from collections.abc import Iterator

from clotho.api.training_run import TrainingRun
from clotho.plan.model import ObjectKey, Validate
from clotho.plan.run.components import RunComponent, template_of
from clotho.plan.run.refusal import refuse
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.run.startup import render_pod
from clotho.plan.wording import sentence
from clotho.render.names import pod_name


def check_templates(situation: Situation) -> Decision | None:
    """Once for each generation of a spec with templates, while the run has no pods; None when that is done."""
    if any(component.pods for component in situation.components):
        return None
    refused = situation.observed.refused
    with_template = {_key(situation.run, each): each for each in _with_template(situation)}
    for key, component in with_template.items():
        if key in refused and refused[key].is_permanent:
            return refuse(situation, f"{template_of(situation.run, component)[0]}: {refused[key].message}")
    if not situation.observed.is_unchecked or not with_template:
        return None
    problem = next((refused[key].message for key in with_template if key in refused), "")
    text = f"the API server refused a pod: {problem}" if problem else "the pod templates are being checked"
    return Decision(
        phase="Pending",
        reason="Validating",
        message=sentence(text),
        components=situation.components,
        actions=tuple(
            Validate(key=key, manifest=render_pod(situation, component, 0, 0))
            for key, component in with_template.items()
        ),
    )


def _with_template(situation: Situation) -> Iterator[RunComponent]:
    return (each for each in situation.components if each.replicas and template_of(situation.run, each)[1])


def _key(run: TrainingRun, component: RunComponent) -> ObjectKey:
    return ObjectKey("Pod", pod_name(run.metadata, component.kind, component.environment, 0))
