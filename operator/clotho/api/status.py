"""TrainingRun status: what is known about a run, and all that the next pass of the operator needs to know."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from clotho.api.phases import FINISHED_EXPORT_PHASES, FINISHED_PHASES, ExportPhase, Phase
from clotho_contract.progress import CheckpointInfo, EvaluationSummary, HistorySample

ConditionType = Literal[
    "Accepted",
    "APIServerReady",
    "TrainerReady",
    "InferenceReady",
    "EnvironmentsReady",
    "Ready",
    "Reconciling",
    "Stalled",
    "Finished",
    "Succeeded",
    "Failed",
    "Exported",
    "CheckpointsCopied",
]
QUEUED: Final = "Queued"  # the reason of Ready and Reconciling
REFUSED: Final = "Invalid"  # the reason of conditions that report a spec
Truth = Literal["True", "False", "Unknown"]
PodState = Literal["Waiting", "Starting", "Ready", "Stopping", "Succeeded", "Failed", "Missing", "Completed", "Stopped"]


class StatusPart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Tolerant of fields of other versions, silent about what is not known."""


class Condition(StatusPart, frozen=True):
    type: ConditionType
    status: Truth
    reason: str
    message: str
    last_transition_time: datetime
    observed_generation: int


Conditions = Annotated[
    tuple[Condition, ...],
    Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]


class RunProgress(StatusPart, frozen=True):
    """How far the training is."""

    step: Annotated[int, Meta(description="Optimiser steps done.")]
    total_steps: Annotated[int, Meta(description="Optimiser steps asked for.")]
    percent: Annotated[int, Meta(description="Steps done, in percent.")]
    steps: Annotated[str, Meta(description="Steps done and asked for, as 59/80.")] = ""
    reward_mean: Annotated[float | None, Meta(description="Mean reward of the last batch.")] = None
    loss: Annotated[float | None, Meta(description="Loss of the last step.")] = None
    percent_correct: Annotated[float | None, Meta(description="Share of correct answers, where reported.")] = None
    tokens_per_second: Annotated[float | None, Meta(description="Tokens trained a second.")] = None
    eta_seconds: Annotated[int | None, Meta(description="Seconds until the last step at the present speed.")] = None
    last_step_time: Annotated[datetime | None, Meta(description="When the last step was made.")] = None
    engine: Annotated[
        str,
        Meta(description="What serves the policy: fast, transformers, vllm, replicas (of a sharded model) or tinker."),
    ] = ""


class LastExit(StatusPart, frozen=True):
    """How a pod of the component last ended."""

    reason: Annotated[str, Meta(description="OOMKilled, Evicted, InvalidConfig, Error, ...")]
    message: Annotated[str, Meta(description="What happened, in one sentence.")]
    exit_code: Annotated[int | None, Meta(description="Exit code of the container.")] = None
    time: Annotated[datetime | None, Meta(description="When it was noticed.")] = None


class Retry(StatusPart, frozen=True):
    """A pod that is accounted for and will be replaced; written before the pod is deleted."""

    uid: Annotated[str, Meta(description="The pod that goes.")]
    at: Annotated[datetime, Meta(description="Not before this time.")]


class ComponentStatus(StatusPart, frozen=True):
    """One component of the run."""

    name: Annotated[str, Meta(description="api-server, trainer, inference, or the name of the environment.")]
    state: Annotated[
        PodState,
        Meta(
            description="The state of the pod; of several, the one furthest from ready. Completed or Stopped when the "
            "run is finished and its pods are gone."
        ),
    ]
    replicas: Annotated[int, Meta(description="Pods wanted; with autoscaling, the present number.")] = 1
    ready: Annotated[int, Meta(description="Pods ready.")] = 0
    pod: Annotated[str, Meta(description="Name of the pod; of several, of the first.")] = ""
    image: Annotated[str, Meta(description="Image of the last pod's main container.")] = ""
    restarts: Annotated[int, Meta(description="Pods that were replaced, for whatever reason.")] = 0
    failures: Annotated[int, Meta(description="Restarts that count against restarts.limit.")] = 0
    dependency_failures: Annotated[
        int, Meta(description="Restarts in a row because something that the component depends on did not answer.")
    ] = 0
    last_exit: LastExit | None = None
    retries: Annotated[tuple[Retry, ...], Meta(description="Pods that wait for their replacement.")] = ()


class GangStatus(StatusPart, frozen=True):
    """A trainer of several pods, which are replaced together."""

    retired_attempt: Annotated[
        int, Meta(description="The pods of this attempt, and of earlier ones, are being replaced or are gone.")
    ] = 0
    retry_at: Annotated[datetime | None, Meta(description="The next attempt starts no earlier.")] = None
    releases: Annotated[
        int, Meta(description="Times in a row that pods were removed because there was no node for the others.")
    ] = 0


class TrainerStatus(ComponentStatus, frozen=True):
    """The trainer."""

    ranks: Annotated[str, Meta(description="Ranks ready and asked for, as 15/16, where there are several.")] = ""
    message: Annotated[str, Meta(description="Which of several pods is not ready, where, and why.")] = ""
    gang: GangStatus | None = None


class Components(StatusPart, frozen=True):
    """The components of the run."""

    api_server: ComponentStatus | None = None
    trainer: TrainerStatus | None = None
    inference: Annotated[ComponentStatus | None, Meta(description="The inference replicas, where there are any.")] = (
        None
    )
    environments: tuple[ComponentStatus, ...] = ()
    exporter: ComponentStatus | None = None

    @property
    def of_the_training(self) -> tuple[ComponentStatus, ...]:
        """Those that the run has; without the exporter, which comes after it."""
        fixed = (self.api_server, self.trainer, self.inference)
        return (*(each for each in fixed if each is not None), *self.environments)


AutoscalingReason = Literal["Steady", "Raised", "Lowered", "AtMaximum", "EngineFull"]


class AutoscalingStatus(StatusPart, frozen=True):
    """What the operator chose for an environment with autoscaling, and what it has observed since."""

    name: Annotated[str, Meta(description="Name of the environment.")]
    target: Annotated[int, Meta(description="Pods chosen, from replicas to autoscaling.max.")]
    previous: Annotated[int, Meta(description="Pods before the last change; 0 before the first.")] = 0
    change_time: Annotated[datetime | None, Meta(description="When the number was last changed.")] = None
    reason: Annotated[
        AutoscalingReason,
        Meta(
            description="Raised or Lowered by the last change; AtMaximum or EngineFull while more pods are needed or "
            "would not help; else Steady."
        ),
    ] = "Steady"
    message: Annotated[str, Meta(description="The reason in a sentence.")] = ""
    step: Annotated[int, Meta(description="The last step that was observed.")] = 0
    waiting_steps: Annotated[int, Meta(description="Observed steps in a row in which the trainer waited.")] = 0
    full_since: Annotated[datetime | None, Meta(description="Since when data has always waited.")] = None


class ExportedFileStatus(StatusPart, frozen=True):
    """A file that was written."""

    path: Annotated[str, Meta(description="Relative to the folder.")]
    bytes: Annotated[int, Meta(description="Its size.")]
    sha256: Annotated[str, Meta(description="Its checksum.")]


class ExportStatus(StatusPart, frozen=True):
    """How the export that spec.export asks for is doing; a failed one leaves the run completed."""

    phase: Annotated[ExportPhase, Meta(description="Where the export is in its life.")]
    settings: Annotated[str, Meta(description="Fingerprint of the spec.export that this is about.")]
    message: Annotated[str, Meta(description="One sentence for people.")] = ""
    percent: Annotated[int, Meta(description="How much of the present file is written or sent.")] = 0
    folder: Annotated[str, Meta(description="Folder on the trainer's claim.")] = ""
    bytes: Annotated[int, Meta(description="Size of everything written.")] = 0
    files: Annotated[
        tuple[ExportedFileStatus, ...], Meta(description="What was written, where the list is short.")
    ] = ()
    ollama: Annotated[str, Meta(description="Name under which Ollama has the model.")] = ""
    start_time: Annotated[datetime | None, Meta(description="When the first pod was seen.")] = None
    completion_time: Annotated[datetime | None, Meta(description="When it ended, well or not.")] = None

    @property
    def is_over(self) -> bool:
        return self.phase in FINISHED_EXPORT_PHASES


class StallStatus(StatusPart, frozen=True):
    """A stall that was detected; cleared by the next step."""

    cause: Annotated[str, Meta(description="EnvironmentsNotProducing, InferenceNotAnswering, TrainerHung, ...")]
    since: Annotated[datetime, Meta(description="When the run last moved.")]


class ResolvedEgress(StatusPart, frozen=True):
    """A network that an environment may reach."""

    cidr: Annotated[str, Meta(description="The network.")]
    ports: Annotated[tuple[int, ...], Meta(description="TCP ports.")] = ()


class ResolvedEnvironment(StatusPart, frozen=True):
    """An Environment as it was when the run started; a change of it does not reach the run."""

    name: Annotated[str, Meta(description="The environment within the run.")]
    environment_name: Annotated[str, Meta(description="The Environment that it uses.")]
    image: Annotated[str, Meta(description="Its image; empty is the operator's own.")] = ""
    entry: Annotated[str, Meta(description="Its entry.")] = ""
    config_map_name: Annotated[str, Meta(description="Its files.")] = ""
    secret_name: Annotated[str, Meta(description="Its secrets.")] = ""
    egress: Annotated[tuple[ResolvedEgress, ...], Meta(description="The networks that it may reach.")] = ()
    requirements: Annotated[tuple[str, ...], Meta(description="Its Python packages.")] = ()
    cache_claim_name: Annotated[str, Meta(description="Its volume claim for downloads.")] = ""
    config: Annotated[dict[str, Any], Meta(description="Its settings, the run's own over them.")] = field(
        default_factory=dict
    )
    template: Annotated[dict[str, Any], Meta(description="Its pod template, the run's own over it.")] = field(
        default_factory=dict
    )


class LimitsInForce(StatusPart, frozen=True):
    """The strictest limits of all TrainingPolicies."""

    gpus: Annotated[int | None, Meta(description="Most GPUs of the trainer and the inference replicas together.")] = (
        None
    )
    replicas: Annotated[int | None, Meta(description="Most pods of all environments together.")] = None
    steps: Annotated[int | None, Meta(description="Most training steps.")] = None
    active_runs: Annotated[int | None, Meta(description="Most active runs of the namespace.")] = None
    images: Annotated[tuple[tuple[str, ...], ...], Meta(description="Allowed images: one of each list.")] = ()
    models: Annotated[tuple[tuple[str, ...], ...], Meta(description="Allowed models: one of each list.")] = ()
    egress: Annotated[tuple[tuple[str, ...], ...], Meta(description="Allowed networks: inside one of each list.")] = ()


class PolicyInForce(StatusPart, frozen=True):
    """The TrainingPolicies that a run was started under; a change of them does not reach the run."""

    names: Annotated[tuple[str, ...], Meta(description="The TrainingPolicies.")] = ()
    locked: Annotated[dict[str, Any], Meta(description="The locked fields, which override spec.")] = field(
        default_factory=dict
    )
    limits: LimitsInForce = LimitsInForce()
    template_fields: Annotated[
        tuple[str, ...], Meta(description="Fields that pod templates may set besides the usual ones.")
    ] = ()

    @property
    def title(self) -> str:
        return f"TrainingPolic{'y' if len(self.names) == 1 else 'ies'} {', '.join(self.names)}"


class Results(StatusPart, frozen=True):
    """What a finished run leaves behind."""

    step: Annotated[int, Meta(description="The last step.")]
    reward_mean: Annotated[float | None, Meta(description="Mean reward of the last batch.")] = None
    loss: Annotated[float | None, Meta(description="Loss of the last step.")] = None
    percent_correct: Annotated[float | None, Meta(description="Share of correct answers.")] = None
    claim: Annotated[str, Meta(description="Volume claim that holds the weights.")] = ""
    path: Annotated[str, Meta(description="Folder of the final checkpoint on that claim.")] = ""
    wandb_url: Annotated[str, Meta(description="The run in Weights & Biases.")] = ""


class TrainingRunStatus(StatusPart, frozen=True):
    """Derived by the operator; never edited by people."""

    phase: Annotated[Phase, Meta(description="Where the run is in its life.")] = "Pending"
    observed_generation: Annotated[int, Meta(description="The generation of spec that this status is about.")] = -1
    message: Annotated[str, Meta(description="One sentence for people.")] = ""
    conditions: Conditions = ()
    progress: RunProgress | None = None
    history: Annotated[
        tuple[HistorySample, ...], Meta(max_length=10, description="At most ten samples spread over the run.")
    ] = ()
    evaluations: Annotated[tuple[EvaluationSummary, ...], Meta(description="Newest and highest of each figure.")] = ()
    components: Components | None = None
    autoscaling: Annotated[
        tuple[AutoscalingStatus, ...], Meta(description="The environments whose number of pods the operator chooses.")
    ] = ()
    resolved: Annotated[
        tuple[ResolvedEnvironment, ...], Meta(description="The Environments that the run uses, as it started.")
    ] = ()
    policy: PolicyInForce | None = None
    queued_since: Annotated[datetime | None, Meta(description="Queued since then.")] = None
    attempt: Annotated[int, Meta(description="How many times the trainer was started.")] = 0
    restarts: Annotated[int, Meta(description="Restarts of all components.")] = 0
    checkpoint: Annotated[CheckpointInfo | None, Meta(description="The newest complete checkpoint.")] = None
    best_checkpoint: Annotated[CheckpointInfo | None, Meta(description="Kept by keepBest.")] = None
    stall: StallStatus | None = None
    results: Results | None = None
    export: ExportStatus | None = None
    wandb_url: Annotated[str, Meta(description="The run in Weights & Biases.")] = ""
    start_time: Annotated[datetime | None, Meta(description="When the run started or was last resumed.")] = None
    running_time: Annotated[datetime | None, Meta(description="When everything was first ready since then.")] = None
    completion_time: Annotated[datetime | None, Meta(description="When the run was finished, in whatever way.")] = None
    written_at: Annotated[datetime | None, Meta(description="When this status was written.")] = None

    @property
    def is_finished(self) -> bool:
        return self.phase in FINISHED_PHASES

    @property
    def is_queued(self) -> bool:
        """By a TrainingPolicy, or by Kueue."""
        reconciling = self.condition("Reconciling")
        return self.queued_since is not None or (reconciling is not None and reconciling.reason == QUEUED)

    def condition(self, kind: ConditionType) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)
