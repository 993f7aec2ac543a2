"""InferenceTest: try an environment against models that are served somewhere, before anything is trained."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from clotho.api.metadata import Metadata
from clotho.api.names import INFERENCE_TEST_KIND, OwnerKind
from clotho.api.phases import FINISHED_TEST_PHASES, TestPhase
from clotho.api.reading import read
from clotho.api.rules import NAME_RULE, Rule, given, immutable
from clotho.api.status import Condition, Conditions, ConditionType, StatusPart
from clotho.api.training_run import EnvironmentSource, ObjectName
from clotho_contract.settings import Settings

OPENROUTER: Final = "https://openrouter.ai/api/v1"
TIDY_SECONDS: Final = 86400  # how long a test that a tool made for itself outlives its end
Size = Literal["small", "medium", "large", "custom"]


class TestedModel(Settings, frozen=True):
    """A model behind an OpenAI-compatible address."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="What the server calls the model.")]
    size: Annotated[Size, Meta(description="Only shown in the results.")] = "custom"
    base_url: Annotated[
        str,
        Meta(
            max_length=512,
            pattern=r"^https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$",
            description="Address of the server, up to and including /v1. In the cluster: the port of the pods, since "
            "the test's pods can go nowhere else.",
        ),
    ] = OPENROUTER
    secret_name: Annotated[
        ObjectName, Meta(description="Secret with the key for the server; empty takes spec.secretName.")
    ] = ""
    secret_key: Annotated[
        str,
        Meta(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Which key of that Secret."),
    ] = "OPENAI_API_KEY"  # noqa: S105 - the name of a key


DEFAULT_MODELS: Final = (
    TestedModel(name="qwen/qwen3-8b", size="small"),
    TestedModel(name="z-ai/glm-4.7-flash", size="medium"),
    TestedModel(name="minimax/minimax-m2.7", size="large"),
)


class InferenceTestSpec(EnvironmentSource, frozen=True):
    """Which environment, named or given directly, is tried with which models."""

    environment_name: Annotated[
        ObjectName,
        Meta(description="An Environment of this namespace; or give entry, with image or configMapName, instead."),
    ] = ""
    config: Annotated[
        dict[str, Any], Meta(description="The environment's settings; they override those of the Environment.")
    ] = field(default_factory=dict)
    models: Annotated[
        tuple[TestedModel, ...],
        Meta(
            max_length=16,
            description="The models to try; when absent a small, a medium and a large one at OpenRouter.",
        ),
    ] = ()
    secret_name: Annotated[
        ObjectName, Meta(description="Secret with the key for the servers of models that name none.")
    ] = ""
    steps: Annotated[int, Meta(ge=1, le=1000, description="Groups that each model makes.")] = 3
    group_size: Annotated[int, Meta(ge=1, le=1024, description="Completions a group.")] = 16
    timeout_seconds: Annotated[
        int, Meta(ge=1, le=86400, description="Time for each model; what it has done until then counts.")
    ] = 600
    ttl_seconds_after_finished: Annotated[
        Annotated[int, Meta(ge=0, le=3_153_600_000)] | None,
        Meta(description="Delete the test this long after it is finished."),
    ] = None

    @property
    def tested_models(self) -> tuple[TestedModel, ...]:
        return self.models or DEFAULT_MODELS


class TestSample(StatusPart, frozen=True, omit_defaults=False):
    """One attempt, shortened."""

    prompt: Annotated[str, Meta(max_length=1024, description="The end of what the model was asked.")] = ""
    answer: Annotated[str, Meta(max_length=1024, description="The beginning of its answer.")] = ""
    score: Annotated[float, Meta(description="The environment's score.")] = 0.0


class TestStep(StatusPart, frozen=True, omit_defaults=False):
    """One group."""

    scores: Annotated[tuple[float, ...], Meta(max_length=16, description="Of its first completions.")] = ()


class ModelResult(StatusPart, frozen=True, omit_defaults=False):
    """How one model did."""

    name: Annotated[str, Meta(description="The model.")]
    size: Annotated[Size, Meta(description="small, medium, large or custom.")] = "custom"
    phase: Annotated[TestPhase, Meta(description="Completed when it made all its groups.")] = "Pending"
    steps_tested: Annotated[int, Meta(description="Groups made.")] = 0
    completions: Annotated[int, Meta(description="Completions scored.")] = 0
    correct: Annotated[int, Meta(description="Completions with a score above 0.")] = 0
    accuracy: Annotated[float, Meta(description="correct / completions.")] = 0.0
    steps_with_correct: Annotated[int, Meta(description="Groups with at least one correct completion.")] = 0
    step_success_rate: Annotated[float, Meta(description="stepsWithCorrect / stepsTested.")] = 0.0
    samples: Annotated[
        tuple[TestSample, ...], Meta(max_length=2, description="Two prompts with an answer and its score each.")
    ] = ()
    steps: Annotated[
        tuple[TestStep, ...], Meta(max_length=16, description="The scores of the first groups, group by group.")
    ] = ()
    error: Annotated[str, Meta(description="What went wrong, with the end of what the environment printed.")] = ""

    @property
    def is_finished(self) -> bool:
        return self.phase in FINISHED_TEST_PHASES


class TestSummary(StatusPart, frozen=True, omit_defaults=False):
    """All models together."""

    requested: Annotated[int, Meta(description="Models asked for.")] = 0
    tested: Annotated[int, Meta(description="Models that made at least one group.")] = 0
    succeeded: Annotated[int, Meta(description="Models that made all their groups.")] = 0
    best_model: Annotated[str, Meta(description="The most accurate of those tested.")] = ""
    average_accuracy: Annotated[float, Meta(description="Mean accuracy of those tested.")] = 0.0
    environment_works: Annotated[bool, Meta(description="At least one model made all its groups.")] = False


class InferenceTestStatus(StatusPart, frozen=True):
    """Derived by the operator; never edited by people."""

    phase: Annotated[TestPhase, Meta(description="Where the test is in its life.")] = "Pending"
    observed_generation: Annotated[int, Meta(description="The generation of spec that this status is about.")] = -1
    message: Annotated[str, Meta(description="One sentence for people.")] = ""
    conditions: Conditions = ()
    models: Annotated[tuple[ModelResult, ...], Meta(description="One result a model, in the order of the spec.")] = ()
    summary: TestSummary | None = None
    start_time: Annotated[datetime | None, Meta(description="When the first pod was made.")] = None
    completion_time: Annotated[datetime | None, Meta(description="When the last model was done.")] = None

    @property
    def is_finished(self) -> bool:
        return self.phase in FINISHED_TEST_PHASES

    def condition(self, kind: ConditionType) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)


class InferenceTest(Struct, frozen=True, kw_only=True):
    kind: ClassVar[OwnerKind] = INFERENCE_TEST_KIND
    metadata: Metadata
    spec: InferenceTestSpec
    status: InferenceTestStatus = field(default_factory=InferenceTestStatus)


class UnreadableTest(Struct, frozen=True, kw_only=True):
    """Its spec does not decode (the CRD was changed under it); its status can still report it."""

    kind: ClassVar[OwnerKind] = INFERENCE_TEST_KIND
    metadata: Metadata
    problem: str
    status: InferenceTestStatus = field(default_factory=InferenceTestStatus)


AnyTest = InferenceTest | UnreadableTest


def parse(body: Mapping[str, Any]) -> AnyTest:
    metadata, spec, status = read(body, InferenceTestSpec, InferenceTestStatus)
    if isinstance(spec, str):
        return UnreadableTest(metadata=metadata, problem=spec, status=status)
    return InferenceTest(metadata=metadata, spec=spec, status=status)


RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "": (NAME_RULE,),
    "spec": (
        Rule(
            rule=f"!({given('environmentName')}) "
            f"|| !(({given('entry')}) || ({given('image')}) || ({given('configMapName')}))",
            message="name an Environment in environmentName, or give entry, image and configMapName; not both",
        ),
        Rule(
            rule=f"({given('environmentName')}) || ({given('entry')})",
            message="entry is missing: name what to test with environmentName, or with entry and, where its code is "
            "not in the operator's own image, with image or configMapName",
            field="entry",
        ),
        *immutable(
            "environmentName",
            "image",
            "entry",
            "configMapName",
            "config",
            "models",
            "secretName",
            "steps",
            "groupSize",
            "timeoutSeconds",
            hint="of a test only ttlSecondsAfterFinished can be changed; create another one",
        ),
    ),
}
