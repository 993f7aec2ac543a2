"""The kinds of clotho.dev as CRDs define them: names, columns, rules."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from clotho.api import environment, inference_tests, names, rules
from clotho.api.environment import CatalogueSpec, EnvironmentStatus
from clotho.api.inference_tests import InferenceTestSpec, InferenceTestStatus
from clotho.api.schema import Schema
from clotho.api.status import TrainingRunStatus
from clotho.api.training_policy import TrainingPolicySpec
from clotho.api.training_run import TrainingRunSpec


class Definition(Struct, frozen=True, kw_only=True):
    """`fresh`: the status of an object that no operator has seen yet, so that it is in progress for kstatus.

    A kind without a status is only read by the operator.
    """

    kind: str
    plural: str
    short_name: str
    description: str
    spec: type
    status: type | None
    columns: tuple[Schema, ...]
    rules: Mapping[str, tuple[rules.Rule, ...]]
    fresh: dict[str, Any] = field(default_factory=lambda: {"observedGeneration": -1})
    always: dict[str, Any] = field(default_factory=dict)  # defaults of a status: no blank columns


def _column(name: str, kind: str, path: str, **more: object) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, **more}


_READY: Final = _column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status')
_AGE: Final = _column("Age", "date", ".metadata.creationTimestamp")
_MESSAGE: Final = _column("Message", "string", ".status.message", priority=1)

TRAINING_RUN: Final = Definition(
    kind=names.KIND,
    plural=names.PLURAL,
    short_name=names.SHORT_NAME,
    description="A reinforcement-learning fine-tuning run: an API server, a trainer that serves the policy it "
    "trains, and environments that produce scored trajectories.",
    spec=TrainingRunSpec,
    status=TrainingRunStatus,
    columns=(
        _column("Phase", "string", ".status.phase"),
        _READY,
        _column("Step", "string", ".status.progress.steps", description="Steps done and asked for."),
        _column("Reward", "number", ".status.progress.rewardMean", description="Mean reward of the last batch."),
        _column("Restarts", "integer", ".status.restarts"),
        _AGE,
        _column("Message", "string", ".status.message"),
        _column("Progress", "integer", ".status.progress.percent", priority=1, description="Steps done, in percent."),
        _column("Model", "string", ".spec.model.name", priority=1),
        _column("GPUs", "integer", ".spec.trainer.gpus", priority=1),
    ),
    rules=rules.RULES,
    fresh={"observedGeneration": -1, "phase": "Pending"},
    always={"phase": "Pending", "attempt": 0, "restarts": 0},
)
ENVIRONMENT: Final = Definition(
    kind=names.ENVIRONMENT_KIND,
    plural=names.PLURALS[names.ENVIRONMENT_KIND],
    short_name="tenv",
    description="An environment that runs can use by its name: where its code is, and which settings it has.",
    spec=CatalogueSpec,
    status=EnvironmentStatus,
    columns=(
        _READY,
        _column("Class", "string", ".status.className"),
        _column("Description", "string", ".status.description"),
        _AGE,
        _column("Image", "string", ".spec.image", priority=1),
        _column("Entry", "string", ".spec.entry", priority=1),
        _MESSAGE,
    ),
    rules=environment.RULES,
)
INFERENCE_TEST: Final = Definition(
    kind=names.INFERENCE_TEST_KIND,
    plural=names.PLURALS[names.INFERENCE_TEST_KIND],
    short_name="it",
    description="A trial of an environment with models that are served somewhere, before anything is trained.",
    spec=InferenceTestSpec,
    status=InferenceTestStatus,
    columns=(
        _column("Phase", "string", ".status.phase"),
        _column("Works", "boolean", ".status.summary.environmentWorks", description="Whether the environment works."),
        _column("Best", "string", ".status.summary.bestModel", description="The most accurate model."),
        _column("Accuracy", "number", ".status.summary.averageAccuracy", description="Mean over the models."),
        _AGE,
        _column("Environment", "string", ".spec.environmentName", priority=1),
        _MESSAGE,
    ),
    rules=inference_tests.RULES,
    fresh={"observedGeneration": -1, "phase": "Pending"},
    always={"phase": "Pending"},
)
TRAINING_POLICY: Final = Definition(
    kind=names.POLICY_KIND,
    plural=names.POLICY_PLURAL,
    short_name="tpol",
    description="What an administrator decides for all TrainingRuns of a namespace: locked fields and limits.",
    spec=TrainingPolicySpec,
    status=None,
    columns=(
        _column("GPUs", "integer", ".spec.limits.gpus"),
        _column("Replicas", "integer", ".spec.limits.replicas"),
        _column("Steps", "integer", ".spec.limits.steps"),
        _column("Active", "integer", ".spec.limits.activeRuns", description="Most active runs."),
        _AGE,
    ),
    rules={},
)
DEFINITIONS: Final = (TRAINING_RUN, ENVIRONMENT, INFERENCE_TEST, TRAINING_POLICY)
