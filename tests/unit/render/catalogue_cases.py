"""An Environment and an InferenceTest whose manifests are recorded beside those of runs."""

from typing import Any

from clotho.api import inference_tests
from clotho.api.environment import Environment, parse
from clotho.plan.environments import EnvironmentSeen, plan_environment
from clotho.plan.inference_tests import TestSeen, plan_test
from clotho.plan.model import Apply, Create, Plan
from clotho.plan.settings import PlanSettings
from clotho.render.settings import RenderSettings
from unit.plan.run.world import START

Body = dict[str, Any]
METADATA = {"name": "gsm8k", "namespace": "team", "uid": "4567cdef-0000-4000-8000-000000000000", "generation": 1}
ENVIRONMENT: Body = {
    "image": "registry/gsm8k:3",
    "entry": "atropos:/environment/$(HOME).py",
    "configMapName": "code",
    "secretName": "keys",
    "template": {
        "metadata": {"annotations": {"team": "reasoning"}},
        "spec": {
            "imagePullSecrets": [{"name": "private"}],
            "nodeSelector": {"disk": "ssd"},
            "containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}],
        },
    },
}
TEST: Body = {
    "entry": "letters",
    "config": {"letters": "$(OPENAI_API_KEY)", "words": ["a b"]},
    "secretName": "openrouter",
    "models": [
        {"name": "qwen/qwen3-8b", "size": "small"},
        {"name": "mine", "baseUrl": "http://vllm.models.svc.cluster.local:8000/v1", "secretName": "own"},
    ],
}


def environment_of(spec: Body) -> Environment:
    found = parse({"metadata": METADATA, "spec": spec})
    assert isinstance(found, Environment)
    return found


def render_environment(settings: RenderSettings) -> list[Body]:
    return _manifests(plan_environment(environment_of(ENVIRONMENT), EnvironmentSeen(files="f"), START, _plan(settings)))


def render_test(settings: RenderSettings) -> list[Body]:
    test = inference_tests.parse({"metadata": METADATA | {"name": "trial"}, "spec": TEST})
    return _manifests(plan_test(test, TestSeen(), START, _plan(settings)))


def _plan(settings: RenderSettings) -> PlanSettings:
    return PlanSettings(render=settings)


def _manifests(wanted: Plan[Any]) -> list[Body]:
    return [action.manifest for action in wanted.actions if isinstance(action, Create | Apply)]
