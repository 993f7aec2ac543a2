"""The parts of a TrainingRun that its pods read too. The descriptions are what `kubectl explain` prints."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from clotho_contract.model_names import normalise_model_name

PositiveInt = Annotated[int, Meta(ge=1)]
Sharding = Literal["none", "fsdp"]
Fraction = Annotated[float, Meta(ge=0, le=1)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=False):
    """Immutable, camelCase in files, and intolerant of misspelt fields."""


class Model(Settings, frozen=True):
    """The language model that is fine-tuned."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            description="A Hugging Face name such as Qwen/Qwen3-8B (hf.co/Qwen/Qwen3-8B-GGUF:Q8_0 means the same), or "
            "a path below /models when claimName is set.",
        ),
    ]
    revision: Annotated[str, Meta(min_length=1, description="Branch, tag or commit of the model repository.")] = "main"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Meta(description="Precision of the weights; auto takes what the checkpoint was saved in."),
    ] = "bfloat16"
    quantization: Annotated[
        Literal["none", "nf4", "fp8"],
        Meta(
            description="nf4 keeps the frozen base in 4 bits (QLoRA): smaller, slower. fp8 computes with it in 8 bits "
            "on the tensor cores of Hopper and newer: faster, not smaller. Both need CUDA and adapters."
        ),
    ] = "none"

    def __post_init__(self) -> None:
        force_setattr(self, "name", normalise_model_name(self.name))


class Lora(Settings, frozen=True):
    """Low-rank adapters. A rank of 0 trains all weights."""

    rank: Annotated[int, Meta(ge=0, le=1024, description="Rank of the adapters; 0 trains the full weights.")] = 32
    alpha: Annotated[float, Meta(gt=0, description="Scale of the adapters' output: alpha / rank.")] = 64.0
    dropout: Annotated[Fraction, Meta(description="Dropout on the adapters' input while training.")] = 0.0
    target_modules: Annotated[
        str, Meta(min_length=1, description="all-linear, or module names separated by commas.")
    ] = "all-linear"


CISPO_LARGEST_RATIO: Final = 5.0


class Loss(Settings, frozen=True):
    """The policy-gradient objective, as TRL names it."""

    type: Annotated[
        Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"],
        Meta(description="How token losses are clipped and averaged."),
    ] = "dapo"
    epsilon: Annotated[float, Meta(gt=0, description="Clip range of the importance ratio, below 1.")] = 0.2
    epsilon_high: Annotated[
        float | None, Meta(description="Clip range above 1 (default: epsilon); of cispo, the largest ratio (5).")
    ] = None
    beta: Annotated[float, Meta(ge=0, description="Weight of the KL penalty to the initial policy.")] = 0.0
    entropy_coefficient: Annotated[float, Meta(ge=0, description="Weight of an entropy bonus.")] = 0.0
    importance_sampling: Annotated[
        Literal["token", "sequence"], Meta(description="Ratio per token, or per sequence (GSPO).")
    ] = "token"
    normalize_advantages: Annotated[
        Literal["group", "batch", "none"],
        Meta(description="Divide centred rewards by the standard deviation of the group, of the batch, or not."),
    ] = "group"
    mask_truncated: Annotated[bool, Meta(description="Leave out completions that ran into the token limit.")] = False

    @property
    def ratio_range(self) -> tuple[float, float]:
        """The importance ratios that are not clipped. cispo clips the weight itself, above only: a range as narrow as
        that of the other losses would stop it."""
        if self.type == "cispo":
            return 0.0, CISPO_LARGEST_RATIO if self.epsilon_high is None else self.epsilon_high
        return 1.0 - self.epsilon, 1.0 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)


class WorldModel(Settings, frozen=True):
    """ECHO: an auxiliary loss on the tokens that the environment wrote."""

    coefficient: Annotated[float, Meta(ge=0, description="Weight of the world-model loss; 0 turns it off.")] = 0.0
    normalization: Annotated[
        Literal["selected_tokens", "sequence_mean", "seq_mean_token_sum_norm"],
        Meta(description="How the loss is averaged over the environment's tokens."),
    ] = "selected_tokens"


class Checkpoint(Settings, frozen=True):
    """When the trainer saves, and how much it keeps."""

    every_steps: Annotated[
        PositiveInt, Meta(description="Save after this many steps; also at the end and on stop.")
    ] = 25
    every_epoch: Annotated[bool, Meta(description="Save after each pass over inline.dataset as well.")] = False
    keep: Annotated[PositiveInt, Meta(description="How many of the newest checkpoints stay on the volume.")] = 3
    keep_best: Annotated[
        str, Meta(max_length=128, description="Evaluated figure whose best checkpoint stays; -NAME: lower is better.")
    ] = ""
    on_damage: Annotated[
        Literal["Fail", "StartOver"],
        Meta(description="What to do when the run's checkpoints are damaged or gone: fail, or start again at step 1."),
    ] = "Fail"


class Training(Settings, frozen=True):
    """How the policy is trained."""

    steps: Annotated[
        PositiveInt, Meta(le=10_000_000, description="Optimiser steps; the run is complete after the last.")
    ]
    backend: Annotated[
        Literal["trl", "tinker"], Meta(description="trl trains on this pod's GPU, tinker on the Tinker service.")
    ] = "trl"
    batch_size: Annotated[
        int, Meta(ge=1, le=65536, description="Sequences a step; a multiple of every environment's group size.")
    ] = 128
    micro_batch_size: Annotated[
        int, Meta(ge=0, description="Sequences a forward pass; 0 lets the trainer choose. Divides batchSize.")
    ] = 0
    max_tokens: Annotated[
        int, Meta(ge=2, le=10_000_000, description="Longest sequence that is trained, prompt included.")
    ] = 9000
    learning_rate: Annotated[float, Meta(gt=0, le=1, description="Step size of the optimiser.")] = 4e-5
    scheduler: Annotated[
        Literal["constant", "linear", "cosine", "constant_with_warmup"],
        Meta(description="Course of the learning rate."),
    ] = "constant"
    warmup_steps: Annotated[int, Meta(ge=0, description="Steps over which the learning rate rises.")] = 0
    weight_decay: Annotated[float, Meta(ge=0, description="Decoupled weight decay (AdamW).")] = 0.0
    max_grad_norm: Annotated[float, Meta(gt=0, description="Gradients are clipped to this norm.")] = 1.0
    gradient_checkpointing: Annotated[
        bool | None,
        Meta(description="Recompute activations instead of keeping them; absent: only when they do not fit."),
    ] = None
    lora: Lora = field(default_factory=Lora)
    loss: Loss = field(default_factory=Loss)
    world_model: WorldModel = field(default_factory=WorldModel)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    max_off_policy_batches: Annotated[
        PositiveInt, Meta(description="Batches that may wait in the queue before environments are asked to slow down.")
    ] = 3
    max_staleness: Annotated[
        int, Meta(ge=0, description="Drop groups made by a policy more than this many steps old; 0 keeps all.")
    ] = 0
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1, description="Seeds weights, data order and sampling.")] = 0


class Vllm(Settings, frozen=True):
    """How vLLM serves the policy, where inference.engine is vllm."""

    mode: Annotated[
        Literal["colocate", "server"],
        Meta(description="colocate starts vLLM beside the training; server uses one that runs already."),
    ] = "colocate"
    url: Annotated[
        str, Meta(max_length=512, pattern=r"^(https?://.+)?$", description="Base URL of the server, without /v1.")
    ] = ""
    adapter_path: Annotated[
        str,
        Meta(
            max_length=512, description="Folder on a volume that the server mounts at the same path: adapters go there."
        ),
    ] = ""
    memory_share: Annotated[
        float, Meta(gt=0, lt=1, description="Share of the GPU's memory that a colocated vLLM takes.")
    ] = 0.35
    max_length: Annotated[
        int, Meta(ge=0, description="Longest sequence that is served, prompt included; 0 takes training.maxTokens.")
    ] = 0
    tensor_parallel: Annotated[
        PositiveInt, Meta(le=64, description="GPUs of the pod over which a colocated vLLM spreads each layer.")
    ] = 1


class Inference(Settings, frozen=True):
    """How the policy is served to the environments."""

    engine: Annotated[
        Literal["auto", "fast", "transformers", "vllm"],
        Meta(
            description="auto picks fast on CUDA for dense Qwen2, Qwen3, Llama and Mistral models, else transformers."
        ),
    ] = "auto"
    weight_updates: Annotated[
        Literal["in_flight", "drained"],
        Meta(description="New weights take over sequences in flight, or wait until those are finished."),
    ] = "in_flight"
    temperature: Annotated[float, Meta(gt=0, le=10, description="Used where a request does not name one.")] = 1.0
    max_batch_size: Annotated[
        PositiveInt | None, Meta(description="Sequences an engine decodes together; by default a batch, 128 to 512.")
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8"], Meta(description="fp8: keys and values in 8 bits (engine fast); auto: as the weights.")
    ] = "auto"
    vllm: Vllm = field(default_factory=Vllm)


class Wandb(Settings, frozen=True):
    """Where the run reports in Weights & Biases."""

    mode: Annotated[Literal["online", "offline", "disabled"], Meta(description="offline writes to the volume.")] = (
        "online"
    )
    project: Annotated[str, Meta(min_length=1, description="Project name.")] = "atropos-tinker"
    entity: Annotated[
        str, Meta(description="Team or user; empty takes WANDB_ENTITY of the Secret, else the key's default.")
    ] = ""
    name: Annotated[str, Meta(max_length=128, description="Name of the run there; empty: <environment>-<id>.")] = ""


class S3(Settings, frozen=True):
    """A bucket of an S3-compatible store."""

    bucket: Annotated[str, Meta(pattern=r"^[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]$", description="Name of the bucket.")]
    prefix: Annotated[
        str, Meta(max_length=256, pattern=r"^([\w.-]+(/[\w.-]+)*)?$", description="Folder in the bucket.")
    ] = ""
    endpoint: Annotated[
        str,
        Meta(max_length=256, pattern=r"^(https?://[^/@\s]+)?$", description="URL of the store; empty: AWS."),
    ] = ""
    region: Annotated[str, Meta(min_length=1, max_length=64, description="Region of the bucket.")] = "us-east-1"


Quantization = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


class Ollama(Settings, frozen=True):
    """An Ollama server that gets the finished model."""

    url: Annotated[
        str,
        Meta(
            max_length=512,
            pattern=r"^https?://[^/@\s]+(/[^@\s?#]*)?$",
            description="Base URL of the server, such as http://ollama.models:11434; without credentials.",
        ),
    ]
    name: Annotated[
        str,
        Meta(
            max_length=253,
            pattern=r"^([A-Za-z0-9][-A-Za-z0-9._]*/){0,2}[A-Za-z0-9][-A-Za-z0-9._]*(:[A-Za-z0-9_][-A-Za-z0-9._]*)?$",
            description="Name of the model there: [[host/]namespace/]model[:tag].",
        ),
    ]


class Export(Settings, frozen=True):
    """What becomes of the trained policy once the run is complete: adapters are merged and files written."""

    formats: Annotated[
        tuple[Literal["safetensors", "gguf"], ...],
        Meta(
            min_length=1,
            max_length=2,
            description="safetensors as Transformers and vLLM read them, gguf as llama.cpp and Ollama do, or both.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ("gguf",)
    quantization: Annotated[
        Quantization, Meta(description="Precision of the weights in the GGUF file; safetensors keep the model's own.")
    ] = "q8_0"
    path: Annotated[
        str,
        Meta(
            max_length=253,
            pattern=r"^[A-Za-z0-9_][-A-Za-z0-9._]*(/[A-Za-z0-9_][-A-Za-z0-9._]*)*$",
            description="Folder on the trainer's claim, relative to its root.",
        ),
    ] = "export"
    ollama: Annotated[
        Ollama | None, Meta(description="Register the GGUF file with this Ollama server; needs the format gguf.")
    ] = None
