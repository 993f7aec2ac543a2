"""TrainingRun: what a person asks for. The descriptions are what `kubectl explain` prints."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from clotho.api.metadata import Metadata
from clotho.api.names import KIND, OwnerKind
from clotho.api.networks import Cidr
from clotho.api.reading import read
from clotho.api.status import TrainingRunStatus
from clotho_contract.inline import Code, Dataset, Inline
from clotho_contract.ranks import Topology
from clotho_contract.settings import (
    S3,
    Export,
    Fraction,
    Inference,
    Model,
    PositiveInt,
    Settings,
    Sharding,
    Training,
    Wandb,
)
from clotho_contract.trajectory import DEFAULT_GROUP_SIZE, group_size_of

ObjectName = Annotated[str, Meta(max_length=253, pattern=r"^$|^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]
Quantity = Annotated[str, Meta(max_length=32, pattern=r"^[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$")]
EnvironmentName = Annotated[str, Meta(max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
PodTemplate = Annotated[
    dict[str, Any],
    Meta(
        description=(
            "A partial pod (metadata, spec) merged strategically over the rendered one: node selectors, "
            "tolerations, resources, another image, extra volumes or containers. The main container is called `main`."
        )
    ),
]

GROUP_SIZE_SCHEMA: Final = {
    "type": "integer",
    "format": "int64",
    "minimum": 1,
    "maximum": 65536,
    "description": f"Completions that are scored together; {DEFAULT_GROUP_SIZE} when absent.",
}


class ModelSpec(Model, frozen=True):
    """The language model that is fine-tuned, and where it comes from."""

    claim_name: Annotated[
        ObjectName,
        Meta(description="Volume claim with models, mounted at /models. Empty gives an empty, temporary /models."),
    ] = ""
    secret_name: Annotated[
        ObjectName, Meta(description="Secret with the key HF_TOKEN, for gated models on the Hugging Face Hub.")
    ] = ""


class EnvironmentSource(Settings, frozen=True):
    """Where an environment's code is."""

    image: Annotated[
        str, Meta(max_length=512, description="Image that holds the environment; empty takes the operator's own.")
    ] = ""
    entry: Annotated[
        str,
        Meta(
            max_length=512,
            description="What the image runs: `letters`, `module:Class`, `path/to/file.py`, `atropos:path/to/file.py`, "
            "`reasoning-gym:<task>`, `verifiers:<name>`. Empty takes the environment's name.",
        ),
    ] = ""
    config_map_name: Annotated[
        ObjectName,
        Meta(
            description="ConfigMap with Python files, mounted at /environment (entry: /environment/mine.py, or "
            "atropos:/environment/mine.py): no image needs to be built."
        ),
    ] = ""


SecretVariables = Annotated[
    ObjectName, Meta(description="Secret whose keys become environment variables of the environment's pods.")
]


Port = Annotated[int, Meta(ge=1, le=65535)]
# A name, an exact version and hashes: no options, no URLs.
Requirement = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2048,
        pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]*==[A-Za-z0-9.+!_-]+( --hash=sha256:[0-9a-f]{64})+$",
    ),
]


class EgressRule(Settings, frozen=True):
    """A network that an environment may reach, and on which TCP ports."""

    cidr: Annotated[
        Cidr,
        Meta(
            description="The network, such as 203.0.113.0/24; a single address ends with /32. 0.0.0.0/0 is every "
            "public address; private networks need the administrator (runs.privateNetworks)."
        ),
    ]
    ports: Annotated[tuple[Port, ...], Meta(min_length=1, max_length=16, description="TCP ports.")] = (443,)


class EnvironmentNeeds(EnvironmentSource, frozen=True):
    """An environment's code and what it needs besides."""

    egress: Annotated[
        Annotated[tuple[EgressRule, ...], Meta(max_length=32)] | None,
        Meta(
            description="Networks outside the run that the environment's pods may reach: a hub, a judge model. Without "
            "it they reach their run and DNS, and nothing else."
        ),
    ] = None
    requirements: Annotated[
        tuple[Requirement, ...],
        Meta(
            max_length=64,
            description="Python packages that the image does not have, one `name==version --hash=sha256:...` each, "
            "with all that they depend on. Installed from wheels; needs egress to a package index.",
        ),
    ] = ()
    cache_claim_name: Annotated[
        ObjectName,
        Meta(
            description="Volume claim, mounted at /cache: datasets and models that you put there, the cache of the "
            "Hugging Face Hub (HF_HOME), and requirements. ReadWriteMany where pods are on several nodes."
        ),
    ] = ""


class Autoscaling(Settings, frozen=True):
    """More pods while the trainer waits for data, fewer while data waits for the trainer."""

    max: Annotated[int, Meta(ge=1, le=256, description="Most pods; replicas is the fewest.")]


class EnvironmentSpec(EnvironmentNeeds, frozen=True, kw_only=True):
    """One environment: a task that samples from the policy and scores what it answers."""

    name: Annotated[
        EnvironmentName, Meta(description="Name of the environment within the run; part of the names of its pods.")
    ]
    replicas: Annotated[
        int, Meta(ge=0, le=256, description="How many pods produce trajectories. Can be changed at any time.")
    ] = 1
    autoscaling: Annotated[
        Autoscaling | None,
        Meta(description="Lets the operator choose the number of pods, from replicas to max. Can be changed any time."),
    ] = None
    weight: Annotated[float, Meta(gt=0, description="Share of each batch, relative to the other environments.")] = 1.0
    min_batch_allocation: Annotated[
        Fraction | None, Meta(description="Smallest share of each batch that this environment fills.")
    ] = None
    environment_name: Annotated[
        ObjectName,
        Meta(
            description="An Environment of this namespace: it gives image, entry, files, secrets, settings and pod "
            "template, as they are when the run starts. Fields set here override it."
        ),
    ] = ""
    secret_name: SecretVariables = ""
    config: Annotated[
        dict[str, Any],
        Meta(
            description="The environment's own settings, handed over untouched; `group_size` is known to all.",
            extra_json_schema={"properties": {"group_size": GROUP_SIZE_SCHEMA}},
        ),
    ] = field(default_factory=dict)
    template: PodTemplate = field(default_factory=dict)

    @property
    def most_replicas(self) -> int:
        """None of an environment that is switched off with replicas 0."""
        return max(self.replicas, self.autoscaling.max) if self.autoscaling and self.replicas else self.replicas

    @property
    def group_size(self) -> int:
        return group_size_of(self.config)


class DatasetSpec(Dataset, frozen=True):
    """Where the prompts come from: a file in a ConfigMap, on a claim or in the image, or the Hugging Face Hub."""

    config_map_name: Annotated[ObjectName, Meta(description="ConfigMap with the file, mounted at /dataset.")] = ""
    claim_name: Annotated[ObjectName, Meta(description="Volume claim with the file, mounted at /dataset.")] = ""


class CodeSpec(Code, frozen=True):
    """Python modules with the rewards and tools: in a ConfigMap, on a claim, or in the trainer's image."""

    config_map_name: Annotated[ObjectName, Meta(description="ConfigMap with the modules, mounted at /code.")] = ""
    claim_name: Annotated[ObjectName, Meta(description="Volume claim with the modules, mounted at /code.")] = ""


class InlineSpec(Inline, frozen=True):
    """A dataset with reward functions, instead of environments: the trainer is the run's only pod."""

    dataset: DatasetSpec
    code: CodeSpec = field(default_factory=CodeSpec)


class TrainerSpec(Settings, frozen=True):
    """The pods that train and serve the policy: one rank for each GPU, or one for each pod without GPUs."""

    replicas: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Trainer pods, with `gpus` each. They start, restart and stop together, and share every batch.",
        ),
    ] = 1
    gpus: Annotated[
        int, Meta(ge=0, le=64, description="GPUs (gpuResource) of each trainer pod; 0 runs on the CPU.")
    ] = 1
    gpu_resource: Annotated[
        str,
        Meta(
            max_length=128,
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            description="What nodes call a GPU, such as nvidia.com/mig-3g.40gb; of inference replicas too.",
        ),
    ] = "nvidia.com/gpu"
    sharding: Annotated[
        Sharding,
        Meta(
            description="fsdp spreads the model over all ranks (FSDP2), for models larger than a GPU. The ranks do not "
            "generate then: inference.replicas or a vLLM server must."
        ),
    ] = "none"
    disruption_budget: Annotated[
        bool, Meta(description="Create a PodDisruptionBudget, so that draining a node waits for the trainer.")
    ] = False
    tinker_secret_name: Annotated[
        ObjectName, Meta(description="Secret with the key TINKER_API_KEY; needed by the tinker backend.")
    ] = ""
    template: PodTemplate = field(default_factory=dict)

    def devices(self, gpus: int) -> str:
        """So many GPUs, as the scheduler counts them; empty for none."""
        return f"{gpus} {self.gpu_resource}" if gpus else ""


class InferenceSpec(Inference, frozen=True):
    """How the policy is served to the environments: by the trainer, and by replicas where there are any."""

    replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Pods that only serve the policy, besides the trainer's. They follow its steps and are "
            "replaced one by one. Can be changed at any time.",
        ),
    ] = 0
    gpus: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(
            description="GPUs of each replica; absent: 1 (vLLM: vllm.tensorParallel) where the trainer has any, else 0."
        ),
    ] = None


class ApiServerSpec(Settings, frozen=True):
    """The pod that collects scored trajectories and hands batches to the trainer."""

    template: PodTemplate = field(default_factory=dict)


class S3Spec(S3, frozen=True, kw_only=True):
    """A bucket that checkpoints are copied to, while the run trains."""

    secret_name: Annotated[
        ObjectName, Meta(min_length=1, description="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
    ]


class Storage(Settings, frozen=True):
    """Where checkpoints and queued trajectories live."""

    size: Annotated[
        Quantity,
        Meta(description="Size of the trainer's claim, which holds the checkpoints; also limits a temporary /models."),
    ] = "50Gi"
    api_server_size: Annotated[Quantity, Meta(description="Size of the API server's claim.")] = "20Gi"
    storage_class_name: Annotated[
        ObjectName, Meta(description="Storage class of both claims; empty takes the cluster's default.")
    ] = ""
    claim_name: Annotated[
        ObjectName,
        Meta(description="An existing claim for the trainer: continue from the newest checkpoint in it."),
    ] = ""
    retain: Annotated[
        bool, Meta(description="Keep the trainer's claim, once it has a checkpoint, when the run is deleted.")
    ] = True
    s3: S3Spec | None = None
    resume_from: Annotated[
        str,
        Meta(
            max_length=512,
            pattern=r"^(s3://[a-z0-9][-a-z0-9.]*(/[\w.-]+)*)?$",
            description="Copies of another run (s3://bucket/folder) to continue from; credentials are those of s3.",
        ),
    ] = ""
    ephemeral: Annotated[
        bool, Meta(description="No claims at all: a pod that is replaced starts from nothing. For experiments.")
    ] = False


class WandbSpec(Wandb, frozen=True):
    """Weights & Biases."""

    secret_name: Annotated[ObjectName, Meta(description="Secret with WANDB_API_KEY; WANDB_ENTITY is optional.")] = ""


class Tracking(Settings, frozen=True):
    """Where metrics go besides status and Prometheus."""

    wandb: WandbSpec | None = None
    tensorboard: Annotated[bool, Meta(description="Event files on the trainer's claim.")] = False


class Restarts(Settings, frozen=True):
    """How failures are handled. Evictions, preemptions and lost nodes do not count."""

    limit: Annotated[
        int, Meta(ge=0, le=1000, description="Restarts of each component after failures of its own, in all.")
    ] = 3
    backoff_seconds: Annotated[
        int, Meta(ge=0, le=3600, description="Wait before the first restart; it doubles up to ten minutes.")
    ] = 10


class Stall(Settings, frozen=True):
    """When a run counts as stalled: pods are alive but no step is made."""

    after_seconds: Annotated[PositiveInt, Meta(le=31_536_000, description="Seconds without a step.")] = 1800
    action: Annotated[
        Literal["Report", "Restart"], Meta(description="Only report it, or restart the component that causes it too.")
    ] = "Report"


Seconds = Annotated[int, Meta(ge=1, le=3_153_600_000)]


class TrainingRunSpec(Settings, frozen=True):
    """One reinforcement-learning fine-tuning run: `model`, `training.steps`, and `environments` or `inline`."""

    model: ModelSpec
    training: Training
    environments: Annotated[
        tuple[EnvironmentSpec, ...],
        Meta(
            min_length=1,
            max_length=32,
            description="What produces the trajectories; at least one, or else `inline`.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    inline: InlineSpec | None = None
    inference: InferenceSpec = field(default_factory=InferenceSpec)
    trainer: TrainerSpec = field(default_factory=TrainerSpec)
    api_server: ApiServerSpec = field(default_factory=ApiServerSpec)
    storage: Storage = field(default_factory=Storage)
    tracking: Tracking = field(default_factory=Tracking)
    restarts: Restarts = field(default_factory=Restarts)
    stall: Stall = field(default_factory=Stall)
    export: Annotated[
        Export | None,
        Meta(description="What is made of the weights once the run is complete. Can be set or changed at any time."),
    ] = None
    suspend: Annotated[
        bool, Meta(description="Stop all pods, keep the checkpoint, and resume from it once this is false again.")
    ] = False
    stop: Annotated[bool, Meta(description="End the run for good after a last checkpoint.")] = False
    deadline_seconds: Annotated[
        Seconds | None, Meta(description="The run fails when it is not complete this long after its (re)start.")
    ] = None
    ttl_seconds_after_finished: Annotated[
        Annotated[int, Meta(ge=0, le=3_153_600_000)] | None,
        Meta(description="Delete the run this long after it is completed, stopped or failed."),
    ] = None

    @property
    def is_inline(self) -> bool:
        """The trainer makes the trajectories itself, and is the run's only pod."""
        return self.inline is not None

    @property
    def can_have_replicas(self) -> bool:
        """Whether inference replicas can follow the trainer."""
        return not self.is_inline and self.training.backend != "tinker"

    @property
    def gpus_per_replica(self) -> int:
        if self.inference.gpus is not None:
            return self.inference.gpus
        most = self.inference.vllm.tensor_parallel if self.inference.engine == "vllm" else 1
        return most if self.trainer.gpus else 0

    @property
    def gpus_per_trainer(self) -> int:
        """Of a trainer's pod; Tinker trains on GPUs of its own."""
        return 0 if self.training.backend == "tinker" else self.trainer.gpus

    @property
    def all_gpus(self) -> int:
        """Of the trainer and the inference replicas together."""
        return self.trainer.replicas * self.trainer.gpus + self.inference.replicas * self.gpus_per_replica

    @property
    def serving_ranks(self) -> int | None:
        """How many ranks serve the policy, None for all: a sharded one has only parts of it, and the first may pass
        requests on to a vLLM server."""
        if self.trainer.sharding == "none":
            return None
        return 1 if self.inference.engine == "vllm" and self.inference.vllm.mode == "server" else 0

    @property
    def topology(self) -> Topology:
        """The trainer's ranks. A colocated vLLM spreads over the GPUs of its pod by itself: that is one rank."""
        if self.inference.engine == "vllm" and self.trainer.sharding == "none":
            return Topology()
        return Topology.of(self.trainer.replicas, self.trainer.gpus)


class TrainingRun(Struct, frozen=True, kw_only=True):
    kind: ClassVar[OwnerKind] = KIND
    metadata: Metadata
    spec: TrainingRunSpec
    status: TrainingRunStatus = field(default_factory=TrainingRunStatus)


class UnreadableRun(Struct, frozen=True, kw_only=True):
    """A run whose spec does not decode (the CRD was changed under it): its status can still report it."""

    kind: ClassVar[OwnerKind] = KIND
    metadata: Metadata
    problem: str
    status: TrainingRunStatus = field(default_factory=TrainingRunStatus)


def parse(body: Mapping[str, Any]) -> TrainingRun | UnreadableRun:
    """Read what the API server sent."""
    metadata, spec, status = read(body, TrainingRunSpec, TrainingRunStatus)
    if isinstance(spec, str):
        return UnreadableRun(metadata=metadata, problem=spec, status=status)
    return TrainingRun(metadata=metadata, spec=spec, status=status)
