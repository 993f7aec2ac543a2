"""What the API server refuses beyond types and ranges: CEL, each rule with a message that names what is allowed."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from clotho.api.schema import Schema
from clotho_contract.trajectory import DEFAULT_GROUP_SIZE


class Rule(Struct, frozen=True, kw_only=True):
    rule: str
    message: str = ""
    expression: str = ""  # a message that names the values; `message` is what remains when it fails
    field: str = ""  # the field that is wrong, below where the rule stands

    def render(self) -> Schema:
        document = {"rule": self.rule, "message": self.message}
        if self.expression:
            document["messageExpression"] = self.expression
        if self.field:
            document["fieldPath"] = f".{self.field}"
        return document


_CHANGEABLE: Final = (
    "once the trainer has started, only replicas, autoscaling, training.steps (upwards), stop, suspend, time limits, "
    "restarts.limit and export can be changed"
)
# Only rules at the root see the status; a write of the spec carries the stored one. Both fields have defaults.
_HAS_STARTED: Final = "(oldSelf.status.attempt > 0 || oldSelf.status.phase in ['Stopped', 'Completed', 'Failed'])"
# All rules are evaluated for a write of the status too, which leaves the spec as it is: few rules, and this one first,
# since the API server copies the schemas of all neighbours for every field that a rule reads.
_MAY_CHANGE: Final = f"self.status.?writtenAt != oldSelf.status.?writtenAt || !{_HAS_STARTED}"


def immutable(*fields: str, hint: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(rule=_is_same("self", "oldSelf", name), message=f"{name} is immutable: {hint}", field=name)
        for name in fields
    )


def _is_same(new: str, old: str, name: str) -> str:
    return f"has({new}.{name}) == has({old}.{name}) && (!has({new}.{name}) || {new}.{name} == {old}.{name})"


def _fixed_at_start(where: str, *fields: str) -> Rule:
    """Fields below a part of the spec that may change until the trainer starts."""
    shown = where.removeprefix("spec").removeprefix(".")
    same = {
        f"{shown}.{name}".removeprefix("."): f"({_is_same(f'self.{where}', f'oldSelf.{where}', name)})"
        for name in fields
    }
    return Rule(
        rule=f"{_MAY_CHANGE} || ({' && '.join(same.values())})",
        message=f"{', '.join(same)} are immutable: {_CHANGEABLE}",
        expression=_names_of_changed(same),
        field=where,
    )


def _names_of_changed(same: Mapping[str, str]) -> str:
    """The message, with the fields whose expression is false."""
    changed = ", ".join(f"{is_same} ? '' : '{name}'" for name, is_same in same.items())
    words = f"f.join(', ') + (f.size() == 1 ? ' is' : ' are') + ' immutable: {_CHANGEABLE}'"
    return f"[[{changed}].filter(f, f != '')].map(f, {words})[0]"


def _environments_fixed_at_start(*fields: str) -> tuple[Rule, ...]:
    old, new = "oldSelf.spec.environments", "self.spec.environments"
    same = {
        f"environments[].{name}": f"{new}.all(e, {old}.all(o, o.name != e.name || ({_is_same('e', 'o', name)})))"
        for name in fields
    }
    return (
        Rule(
            rule=f"{_MAY_CHANGE} || (has({new}) == has({old}) && (!has({new}) "
            f"|| ({new}.size() == {old}.size() && {new}.all(e, {old}.exists(o, o.name == e.name)))))",
            message=f"environments cannot be added or removed: {_CHANGEABLE}",
            field="spec.environments",
        ),
        Rule(
            rule=f"{_MAY_CHANGE} || !(has({new}) && has({old})) || ({' && '.join(same.values())})",
            message=f"{', '.join(same)} are immutable: {_CHANGEABLE}",
            expression=_names_of_changed(same),
            field="spec.environments",
        ),
    )


NAME_RULE: Final = Rule(
    rule="self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    message="metadata.name: at most 63 lower-case letters, digits and hyphens, a letter first: part of host names",
    field="metadata.name",
)


def given(name: str) -> str:
    return f"has(self.{name}) && self.{name} != ''"


def _one_source(where: str) -> Rule:
    return Rule(
        rule=f"!(({given('configMapName')}) && ({given('claimName')}))",
        message=f"{where}: configMapName and claimName exclude each other",
    )


# An Environment's own group size is not known here: the operator checks it once it has looked it up.
_GROUP: Final = (
    "(has(e.config) && has(e.config.group_size) ? e.config.group_size "
    f": has(e.environmentName) && e.environmentName != '' ? 1 : {DEFAULT_GROUP_SIZE})"
)
_UNEVEN: Final = f"self.environments.filter(e, self.training.batchSize % {_GROUP} != 0)"
_BELOW: Final = f"self.training.batchSize - self.training.batchSize % {_GROUP}"
# format() where + would read better: only its cost is estimated below the API server's limit.
_UNEVEN_MESSAGE: Final = (
    f"{_UNEVEN}.map(e, 'training.batchSize: %d is not a multiple of group_size %d (environment %s); use %s'.format(["
    f"self.training.batchSize, {_GROUP}, e.name, self.training.batchSize > {_GROUP} "
    f"? '%d or %d'.format([{_BELOW}, {_BELOW} + {_GROUP}]) : '%d'.format([{_GROUP}])]))[0]"
)

TINKER_RANKS: Final = (
    "training.backend tinker trains on the Tinker service: trainer.replicas must be 1 and trainer.gpus at most 1"
)
INLINE_RANKS: Final = (
    "inline runs train on one rank: trainer.replicas must be 1 and trainer.gpus at most 1; "
    "runs with environments can use more"
)
VLLM_RANKS: Final = (
    "inference.engine vllm serves one rank: trainer.replicas must be 1 and trainer.gpus at most "
    "inference.vllm.tensorParallel; the other engines serve from every rank"
)
SERVER_WEIGHTS: Final = (
    "inference.vllm.mode server serves adapters only: training.lora.rank must be at least 1, or the mode colocate"
)
TINKER_REPLICAS: Final = "training.backend tinker serves the policy by itself: inference.replicas must be 0"
INLINE_REPLICAS: Final = "inline runs sample inside the trainer: inference.replicas must be 0"
SERVER_REPLICAS: Final = (
    "inference.replicas start a vLLM of their own: with inference.vllm.mode server, inference.replicas must be 0"
)
REPLICA_GPUS: Final = (
    "inference.gpus: a replica uses one GPU at most, and as many as inference.vllm.tensorParallel with engine vllm"
)
QUANTIZED_REPLICAS: Final = "inference.gpus must be at least 1 with model.quantization, which needs a GPU"
FP8_CACHE: Final = "inference.kvCacheDtype fp8 needs inference.engine auto or fast"
SHARDED_RANKS: Final = (
    "trainer.sharding fsdp spreads the model over ranks: trainer.replicas or trainer.gpus must be above 1"
)
SHARDED_INFERENCE: Final = (
    "trainer.sharding fsdp leaves no rank that can generate: set inference.replicas to 1 or more, or inference.engine "
    "to vllm with inference.vllm.mode server"
)
SHARDED_QUANTIZATION: Final = (
    "trainer.sharding fsdp cannot spread quantised weights, which FSDP2 does not support: model.quantization must "
    "be none"
)
CISPO_RANGE: Final = (
    "training.loss.epsilonHigh of cispo is the largest importance ratio and must be at least 1;"
    " for a clip range above 1 set training.loss.type to dapo or another clipped loss"
)
SHARDED_DTYPE: Final = "trainer.sharding fsdp cannot train in float16: model.dtype must be bfloat16 or float32"
_ONE_RANK: Final = "(self.trainer.replicas == 1 && self.trainer.gpus <= 1)"

_WHOLE: Final = "self.trainer.sharding == 'none'"
_SHARDING_RULES: Final = (
    Rule(rule=f"{_WHOLE} || !{_ONE_RANK}", message=SHARDED_RANKS, field="trainer"),
    Rule(
        rule=f"{_WHOLE} || self.inference.replicas > 0 "
        "|| (self.inference.engine == 'vllm' && self.inference.vllm.mode == 'server')",
        message=SHARDED_INFERENCE,
        field="inference",
    ),
    Rule(rule=f"{_WHOLE} || self.model.quantization == 'none'", message=SHARDED_QUANTIZATION, field="model"),
    Rule(rule=f"{_WHOLE} || self.model.dtype != 'float16'", message=SHARDED_DTYPE, field="model"),
)

_REPLICA_RULES: Final = (
    Rule(
        rule="self.inference.replicas == 0 || self.training.backend != 'tinker'",
        message=TINKER_REPLICAS,
        field="inference",
    ),
    Rule(rule="self.inference.replicas == 0 || !has(self.inline)", message=INLINE_REPLICAS, field="inference"),
    Rule(
        rule="self.inference.replicas == 0 || self.inference.engine != 'vllm' "
        "|| self.inference.vllm.mode == 'colocate'",
        message=SERVER_REPLICAS,
        field="inference",
    ),
    Rule(
        rule="!has(self.inference.gpus) || (self.inference.engine == 'vllm' "
        "? self.inference.gpus == self.inference.vllm.tensorParallel : self.inference.gpus <= 1)",
        message=REPLICA_GPUS,
        field="inference",
    ),
    Rule(
        rule="self.model.quantization == 'none' || !has(self.inference.gpus) || self.inference.gpus > 0",
        message=QUANTIZED_REPLICAS,
        field="inference",
    ),
)

RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "": (
        NAME_RULE,
        Rule(
            rule="!(self.status.phase in ['Stopped', 'Completed', 'Failed']) "
            "|| self.spec.training.steps == oldSelf.spec.training.steps",
            message="spec.training.steps cannot be raised once the run is finished; create a new run whose "
            "storage.claimName is this run's claim to continue from its last checkpoint",
            field="spec.training.steps",
        ),
        Rule(
            rule=f"{_MAY_CHANGE} || self.spec.training.steps >= oldSelf.spec.training.steps",
            message="training.steps can only be raised once the trainer has started",
            field="spec.training.steps",
        ),
        _fixed_at_start(
            "spec", "model", "inline", "trainer", "apiServer", "storage", "tracking", "stall", "restarts.backoffSeconds"
        ),
        _fixed_at_start(
            "spec.inference", "engine", "weightUpdates", "temperature", "maxBatchSize", "kvCacheDtype", "vllm", "gpus"
        ),
        _fixed_at_start(
            "spec.training",
            "backend",
            "batchSize",
            "microBatchSize",
            "maxTokens",
            "learningRate",
            "scheduler",
            "warmupSteps",
            "weightDecay",
            "maxGradNorm",
            "gradientCheckpointing",
            "lora",
            "loss",
            "worldModel",
            "checkpoint",
            "maxOffPolicyBatches",
            "maxStaleness",
            "seed",
        ),
        *_environments_fixed_at_start(
            "weight",
            "minBatchAllocation",
            "environmentName",
            "image",
            "entry",
            "configMapName",
            "egress",
            "requirements",
            "cacheClaimName",
            "secretName",
            "config",
            "template",
        ),
    ),
    "spec": (
        Rule(
            rule="has(self.environments) != has(self.inline)",
            message="a run has either environments or inline, and not both",
        ),
        Rule(
            rule="!has(self.inline) || has(self.inline.tools) || self.training.worldModel.coefficient == 0.0",
            message="training.worldModel needs inline.tools: without tools only the policy writes tokens",
            field="training",
        ),
        Rule(
            rule=f"!has(self.environments) || self.environments.all(e, self.training.batchSize % {_GROUP} == 0)",
            message="training.batchSize must be a multiple of every environment's group_size",
            expression=_UNEVEN_MESSAGE,
            field="training",
        ),
        Rule(
            rule="!has(self.environments) "
            "|| self.environments.map(e, has(e.minBatchAllocation) ? e.minBatchAllocation : 0.0).sum() <= 1.0",
            message="the environments' minBatchAllocation must not add up to more than 1",
            field="environments",
        ),
        Rule(
            rule="self.training.backend != 'tinker' "
            "|| (has(self.trainer.tinkerSecretName) && self.trainer.tinkerSecretName != '')",
            message="trainer.tinkerSecretName is needed by training.backend tinker: the Secret with TINKER_API_KEY",
            field="trainer",
        ),
        Rule(rule=f"self.training.backend != 'tinker' || {_ONE_RANK}", message=TINKER_RANKS, field="trainer"),
        Rule(rule=f"!has(self.inline) || {_ONE_RANK}", message=INLINE_RANKS, field="trainer"),
        Rule(
            rule=f"self.inference.engine != 'vllm' || {_ONE_RANK} || !({_WHOLE}) "
            "|| (self.trainer.replicas == 1 && self.trainer.gpus <= self.inference.vllm.tensorParallel)",
            message=VLLM_RANKS,
            field="trainer",
        ),
        Rule(
            rule="self.inference.engine != 'vllm' || self.inference.vllm.mode == 'colocate' "
            "|| self.training.lora.rank > 0",
            message=SERVER_WEIGHTS,
            field="inference",
        ),
        Rule(
            rule="self.inference.kvCacheDtype == 'auto' || self.inference.engine in ['auto', 'fast']",
            message=FP8_CACHE,
            field="inference",
        ),
        *_REPLICA_RULES,
        *_SHARDING_RULES,
        Rule(
            rule="self.model.quantization == 'none' || (self.trainer.gpus > 0 && self.training.lora.rank > 0)",
            message="model.quantization needs trainer.gpus of at least 1 and training.lora.rank of at least 1",
            expression="'model.quantization %s needs trainer.gpus of at least 1 and training.lora.rank of at least 1'"
            ".format([self.model.quantization])",
            field="model",
        ),
        Rule(
            rule="!has(self.export) || !self.storage.ephemeral",
            message="export needs storage that lasts: storage.ephemeral must be false",
            field="export",
        ),
    ),
    "spec.stop": (Rule(rule="self || !oldSelf", message="stop cannot be taken back; use suspend to pause a run"),),
    "spec.environments[]": (
        Rule(
            rule="!has(self.autoscaling) || self.autoscaling.max >= self.replicas",
            message="environments[].autoscaling.max must be at least replicas",
            expression="'environments.%s.autoscaling.max: %d is less than replicas %d, the fewest pods'"
            ".format([self.name, self.autoscaling.max, self.replicas])",
            field="autoscaling",
        ),
    ),
    "spec.training": (
        Rule(
            rule="self.microBatchSize == 0 || self.batchSize % self.microBatchSize == 0",
            message="training.microBatchSize must divide training.batchSize",
            expression="'training.microBatchSize: %d does not divide batchSize %d; use 0 to let the trainer choose'"
            ".format([self.microBatchSize, self.batchSize])",
            field="microBatchSize",
        ),
    ),
    "spec.training.loss": (
        Rule(
            rule="!has(self.epsilonHigh) || self.epsilonHigh > 0.0",
            message="training.loss.epsilonHigh must be greater than 0",
            field="epsilonHigh",
        ),
        Rule(
            rule="!has(self.epsilonHigh) || self.type != 'cispo' || self.epsilonHigh >= 1.0",
            message=CISPO_RANGE,
            field="epsilonHigh",
        ),
    ),
    "spec.inline.dataset": (
        Rule(
            rule=f"({given('path')}) != ({given('hub')})",
            message="inline.dataset: give either path or hub",
        ),
        _one_source("inline.dataset"),
    ),
    "spec.inline.code": (_one_source("inline.code"),),
    "spec.storage": (
        Rule(
            rule="!self.ephemeral || !has(self.claimName) || self.claimName == ''",
            message="storage.claimName and storage.ephemeral exclude each other",
        ),
        Rule(
            rule="!has(self.resumeFrom) || self.resumeFrom == '' || has(self.s3)",
            message="storage.resumeFrom needs storage.s3, for its endpoint and credentials",
            field="s3",
        ),
    ),
    "spec.export": (
        Rule(
            rule="!has(self.ollama) || 'gguf' in self.formats",
            message="export.ollama needs the format gguf",
            field="formats",
        ),
    ),
    "spec.tracking.wandb": (
        Rule(
            rule="self.mode != 'online' || (has(self.secretName) && self.secretName != '')",
            message="tracking.wandb.secretName is needed in mode online: the Secret with WANDB_API_KEY; "
            "or set mode to offline",
            field="secretName",
        ),
    ),
}


def add_rules(root: Schema, found: Mapping[str, tuple[Rule, ...]]) -> None:
    for path, rules in found.items():
        _find(root, path)["x-kubernetes-validations"] = [rule.render() for rule in rules]


def _find(schema: Schema, path: str) -> Schema:
    for part in filter(None, path.split(".")):
        schema = schema["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            schema = schema["items"]
    return schema
