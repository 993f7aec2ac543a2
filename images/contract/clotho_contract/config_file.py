"""Config files of hand-written GRPO trainers (model, generation, training, wandb) in the words of a TrainingRun's spec.

The command line makes a TrainingRun of them, the trainer's library a run config.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields

from clotho_contract.inline import Inline
from clotho_contract.nearest import nearest

Document = dict[str, Any]
DEFAULT_GROUP_SIZE: Final = next(field.default for field in fields(Inline) if field.name == "group_size")
CHECKPOINT_STEPS: Final = 50  # the default of such trainers
UNBOUNDED_STEPS: Final = 1_000_000  # where passes over the data end the run

# Section and field there -> field of the spec. Nested fields are written with dots.
_MOVED: Final[Mapping[str, Mapping[str, str]]] = {
    "model": {
        "name": "model.name",
        "name_or_path": "model.name",
        "model_name": "model.name",
        "base_model_name": "model.name",
        "revision": "model.revision",
        "dtype": "model.dtype",
        "torch_dtype": "model.dtype",
        "max_length": "training.maxTokens",
        "max_new_tokens": "inline.maxCompletionTokens",
        "temperature": "inference.temperature",
        "lora.r": "training.lora.rank",
        "lora.rank": "training.lora.rank",
        "lora.alpha": "training.lora.alpha",
        "lora.lora_alpha": "training.lora.alpha",
        "lora.dropout": "training.lora.dropout",
        "lora.lora_dropout": "training.lora.dropout",
        "lora.target_modules": "training.lora.targetModules",
        "lora_r": "training.lora.rank",
        "lora_alpha": "training.lora.alpha",
        "lora_dropout": "training.lora.dropout",
        "lora_target_modules": "training.lora.targetModules",
    },
    "generation": {
        "num_generations": "inline.groupSize",
        "group_size": "inline.groupSize",
        "max_new_tokens": "inline.maxCompletionTokens",
        "max_completion_length": "inline.maxCompletionTokens",
        "temperature": "inference.temperature",
        "system_prompt": "inline.instructions",
    },
    "training": {
        "max_steps": "training.steps",
        "num_generations": "inline.groupSize",
        "max_completion_length": "inline.maxCompletionTokens",
        "temperature": "inference.temperature",
        "learning_rate": "training.learningRate",
        "lr": "training.learningRate",
        "lr_scheduler_type": "training.scheduler",
        "warmup_steps": "training.warmupSteps",
        "weight_decay": "training.weightDecay",
        "max_grad_norm": "training.maxGradNorm",
        "gradient_checkpointing": "training.gradientCheckpointing",
        "save_steps": "training.checkpoint.everySteps",
        "checkpoint_every": "training.checkpoint.everySteps",
        "save_total_limit": "training.checkpoint.keep",
        "loss_type": "training.loss.type",
        "beta": "training.loss.beta",
        "kl_coef": "training.loss.beta",
        "epsilon": "training.loss.epsilon",
        "seed": "training.seed",
        "max_length": "training.maxTokens",
        "epochs": "inline.dataset.epochs",
        "num_epochs": "inline.dataset.epochs",
        "num_train_epochs": "inline.dataset.epochs",
        "shuffle": "inline.dataset.shuffle",
        "reward_model": "inline.rewards.model",
    },
    "data": {
        "path": "inline.dataset.path",
        "hub": "inline.dataset.hub",
        "subset": "inline.dataset.subset",
        "split": "inline.dataset.split",
        "prompt_field": "inline.dataset.promptField",
        "expected_field": "inline.dataset.expectedField",
        "claim_name": "inline.dataset.claimName",
        "config_map_name": "inline.dataset.configMapName",
    },
    "wandb": {
        "project": "tracking.wandb.project",
        "entity": "tracking.wandb.entity",
        "name": "tracking.wandb.name",
        "run_name": "tracking.wandb.name",
        "mode": "tracking.wandb.mode",
        "secret_name": "tracking.wandb.secretName",
    },
}
_BATCH_SIZES: Final = ("batch_size", "per_device_train_batch_size")  # spellings of one field
_ACCUMULATION: Final = "gradient_accumulation_steps"
_MODEL_NAMES: Final = tuple(name for name, path in _MOVED["model"].items() if path == "model.name")
_SHARED_FILE: Final = "rl"  # a config of a larger application has its sections below this one, and the model beside it
# Fields that are known and count for something else than one field of the spec.
_COMBINED: Final[Mapping[str, frozenset[str]]] = {
    "model": frozenset({"use_lora", "load_in_4bit"}),
    "training": frozenset({*_BATCH_SIZES, _ACCUMULATION, "save_strategy"}),
    "wandb": frozenset({"enabled"}),
}
_LEFT_OUT: Final[Mapping[str, Mapping[str, str]]] = {
    "generation": {
        "top_p": "the policy is sampled from its whole distribution, as the importance ratios assume",
        "top_k": "the policy is sampled from its whole distribution, as the importance ratios assume",
        "do_sample": "the policy is always sampled",
    },
    "training": {
        "output_dir": "checkpoints lie on the run's volume claim",
        "report_to": "see the section wandb",
        "logging_steps": "every step is reported",
    },
}


class ConfigFileError(Exception):
    """What is wrong with the file, all of it; one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))


class Translated(Struct, frozen=True):
    spec: Document
    notes: tuple[str, ...]  # what was understood but has no counterpart
    origins: Mapping[str, str]  # a field of the spec -> what its author calls it

    def in_their_words(self, problem: str) -> str:
        """A sentence about the spec as one about the file."""
        paths = "|".join(re.escape(path) for path in sorted(self.origins, key=len, reverse=True))
        return re.sub(rf"\b({paths})\b", lambda found: self.origins[found[0]], problem)


def translate(document: Any, *, needs_rewards: bool = True, needs_data: bool = True) -> Translated:
    """The values are as the file has them; a caller that has rewards or data itself does not need them there."""
    if not isinstance(document, dict):
        raise ConfigFileError([f"the file must hold the sections {', '.join(_MOVED)}"])
    document, left_out = _own_sections(document)
    given = {section: _flat(values) for section, values in document.items() if isinstance(values, dict)}
    if problems := [*_unknown(document, given), *_missing(given, needs_rewards, needs_data)]:
        raise ConfigFileError(problems)
    spec: Document = {}
    for section, values in given.items():
        for name, value in values.items():
            if path := _MOVED[section].get(name):
                _put(spec, path, value)
    _combine(spec, given)
    notes = [
        f"{section}.{name} is left out: {why}"
        for section, known in _LEFT_OUT.items()
        for name, why in known.items()
        if name in given.get(section, {})
    ]
    model = given.get("model", {})
    if model.get("load_in_4bit") and model.get("use_lora") is False:
        notes.append("model.use_lora is left out: a base in 4 bits is trained through a LoRA adapter")
    return Translated(spec, (*left_out, *notes, *_notes_on_length(spec)), _origins(given))


def _own_sections(document: Document) -> tuple[Document, list[str]]:
    """Of a file with an `rl` section: that one's, and what the application's model has for training; with notes."""
    own = document.get(_SHARED_FILE)
    if not isinstance(own, dict):
        return document, []
    shared = _flat(document["model"]) if isinstance(document.get("model"), dict) else {}
    known = {*_MOVED["model"], *_COMBINED["model"]}
    model = {name: value for name, value in shared.items() if name in known} | (own.get("model") or {})
    notes = [f"model.{name} is left out: it is no setting of training" for name in shared if name not in known]
    return {**own, **({"model": model} if model else {})}, notes


def is_config_file(document: Any) -> bool:
    """Whether this looks like another trainer's config and not like a Kubernetes object."""
    return isinstance(document, dict) and "kind" not in document and bool({"model", _SHARED_FILE} & set(document))


def _origins(given: Mapping[str, Document]) -> dict[str, str]:
    names = {
        path: f"{section}.{name}"
        for section, values in given.items()
        for name in values
        if (path := _MOVED[section].get(name))
    }
    factors = [f"training.{name}" for name in (*_BATCH_SIZES, _ACCUMULATION) if name in given.get("training", {})]
    if _batch_size(given):
        factors += [names["inline.groupSize"]] if "inline.groupSize" in names else []
        names["training.batchSize"] = " times ".join(factors)
    return {"inline.dataset": "data", **names}


def _unknown(document: Document, given: Mapping[str, Document]) -> Iterator[str]:
    for section in document:
        if section not in _MOVED:
            yield f"unknown section {section}{nearest(section, _MOVED, 1)}; there are {', '.join(_MOVED)}"
        elif section not in given and document[section] is not None:
            yield f"{section} must hold fields"
    for section, values in given.items():
        known = {*_MOVED.get(section, ()), *_COMBINED.get(section, ()), *_LEFT_OUT.get(section, ())}
        for name in values:
            if section in _MOVED and name not in known:
                yield f"unknown field {section}.{name}{nearest(name, known, 1)}"


def _missing(given: Mapping[str, Document], needs_rewards: bool, needs_data: bool) -> Iterator[str]:
    training, data = given.get("training", {}), given.get("data", {})
    if not set(_MODEL_NAMES) & set(given.get("model", {})):
        yield "model.name is missing"
    if not {"max_steps", "epochs", "num_epochs", "num_train_epochs"} & set(training):
        yield "training.max_steps or training.epochs is missing"
    if needs_rewards and "reward_model" not in training:
        yield "training.reward_model is missing: a function `(output, expected) -> number`, as module:name"
    if needs_data and not {"path", "hub"} & set(data):
        yield "data.path or data.hub is missing: where the prompts and expected answers are"


def _combine(spec: Document, given: Mapping[str, Document]) -> None:
    model, training, wandb = given.get("model", {}), given.get("training", {}), given.get("wandb", {})
    if model.get("load_in_4bit"):
        _put(spec, "model.quantization", "nf4")
    elif model.get("use_lora") is False:
        _put(spec, "training.lora.rank", 0)
    modules = spec.get("training", {}).get("lora", {}).get("targetModules")
    if isinstance(modules, list):
        _put(spec, "training.lora.targetModules", ",".join(map(str, modules)))
    if isinstance(dtype := spec["model"].get("dtype"), str):
        short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
        _put(spec, "model.dtype", short.get(dtype, dtype.removeprefix("torch.")))
    if name := _batch_size(given):
        prompts = _number(training, name) * _number(training, _ACCUMULATION)
        group = spec.get("inline", {}).get("groupSize", DEFAULT_GROUP_SIZE)
        _put(spec, "training.batchSize", prompts * group if isinstance(group, int) else prompts)
    if "steps" not in spec.get("training", {}):
        _put(spec, "training.steps", UNBOUNDED_STEPS)
    if training.get("save_strategy") == "epoch":
        _put(spec, "training.checkpoint.everyEpoch", True)
    if "everySteps" not in spec["training"].get("checkpoint", {}):
        _put(spec, "training.checkpoint.everySteps", CHECKPOINT_STEPS)
    if wandb.get("enabled") is False:
        spec.pop("tracking", None)


def _batch_size(given: Mapping[str, Document]) -> str | None:
    return next((name for name in _BATCH_SIZES if name in given.get("training", {})), None)


def _number(values: Document, name: str) -> int:
    value = values.get(name, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigFileError([f"training.{name}: {value!r} is not a positive whole number"])
    return value


def _notes_on_length(spec: Document) -> Iterator[str]:
    if spec["training"]["steps"] != UNBOUNDED_STEPS:
        return
    if spec["training"].get("scheduler", "constant") in ("linear", "cosine"):
        raise ConfigFileError(["training.max_steps is missing: a decaying learning rate needs the last step"])
    yield "training.max_steps is missing: the run ends with its last epoch, and its percentage means little"


def _flat(values: Document, prefix: str = "") -> Document:
    flat: Document = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _put(spec: Document, path: str, value: Any) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        spec = spec.setdefault(folder, {})
    spec[name] = value
