"""TRL's GRPO objective over rows that were sampled and scored elsewhere. The only module that touches TRL."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, pad

from clotho_contract.settings import Training, WorldModel
from clotho_trainer.model.architecture import recomputable_layers, unsupported_reason
from clotho_trainer.model.load import one_model_at_a_time
from clotho_trainer.training.batch import Observed, Row, trained_tokens
from clotho_trainer.training.local import packing
from clotho_trainer.training.local.logprob_head import completion_logprobs
from clotho_trainer.training.local.packing import Packed

_MEAN_OVER_ROWS = frozenset({"grpo", "sapo", "luspo", "dr_grpo"})

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Pass:
    """Rows as one pass through the model takes them."""

    inputs: Inputs
    batch: Packed | None = None  # the same without padding, where it is used

    @property
    def tokens(self) -> int:
        """That the model reads, padding among them."""
        if self.batch is not None:
            return len(self.batch.tokens)
        return self.inputs["prompt_ids"].numel() + self.inputs["completion_ids"].numel()


@dataclass(frozen=True)
class Figures:
    means: dict[str, float]  # over the micro-batches
    sums: dict[str, float]  # figures that add up over them


class _Unread(torch.Tensor):
    """A figure that TRL would read in every pass, while the GPU runs out of work. It stays where it is until the step
    is done."""

    def item(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, index: Any) -> Any:
        return self if isinstance(index, torch.Tensor) else super().__getitem__(index)


def _reduced(figure: torch.Tensor, **_: Any) -> _Unread:
    """Over this rank alone: ranks merge what they report."""
    return figure.detach().as_subclass(_Unread)


def _gathered(rows: torch.Tensor) -> _Unread:
    """TRL leaves rows without trained tokens out of extremes, for which it would have to know them: here they are as
    the mean of the others, and change nothing."""
    return _reduced(torch.where(rows.isnan(), rows.nanmean(), rows))


class GroupTrainer(GRPOTrainer):
    """GRPOTrainer without its sampling: rows come in, the loss comes out.

    Of TRL's private parts it relies on `_compute_loss`, `_get_per_token_logps_and_entropies` and `_metrics`, and on
    figures passing through accelerate's `reduce` and `gather`; contract tests watch them.
    """

    model: Any
    args: Any
    world_model: WorldModel = WorldModel()
    observed: Observed = Observed()
    has_plain_head: bool = False  # frozen and nothing but a matrix: its gradient has a closed form
    packed_logprobs: Callable[..., tuple[torch.Tensor, torch.Tensor]] = staticmethod(completion_logprobs)
    _inputs: Inputs
    _batch: Packed | None = None
    _logprobs: torch.Tensor

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.accelerator.reduce = _reduced
        self.accelerator.gather = self.accelerator.gather_for_metrics = _gathered
        self._sums: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
        self._recomputed: int | None = None  # layers; None: as TRL has left it

    @property
    def needs_all_rows(self) -> bool:
        """Whether the loss has terms that do not depend on advantages."""
        terms = self.beta, self.args.entropy_coef, self.world_model.coefficient, self.aux_loss_enabled
        return any(terms)

    def loss(self, work: Pass, recomputed_layers: int = 0) -> torch.Tensor:
        self._batch = work.batch
        if self.beta:
            self._recompute(0)
            work.inputs["ref_per_token_logps"] = self._reference_logprobs(work.inputs)
        self._recompute(recomputed_layers)
        result: torch.Tensor = self.compute_loss(self.model, work.inputs)
        return result

    def _recompute(self, layers: int) -> None:
        """The first ones compute their activations again in the backward pass; the others keep them."""
        if layers == self._recomputed:
            return
        if layers:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            for layer in recomputable_layers(self.model)[layers:]:
                layer.gradient_checkpointing = False
        else:
            self.model.gradient_checkpointing_disable()
        self._recomputed = layers

    def plan_accumulation(self, fraction: float) -> None:
        """How much of the step the next micro-batch is. TRL divides by a number of equal micro-batches; ours are not
        equally large, so each has a number of its own."""
        self.current_gradient_accumulation_steps = 1 / fraction  # type: ignore[assignment]
        self.args.steps_per_generation = 1 / fraction

    def take_figures(self) -> Figures:
        means = {key: float(np.nanmean(values)) for key, values in _read(self._metrics["train"]).items()}
        sums = {key: sum(values) for key, values in _read(self._sums).items()}
        self._metrics["train"].clear()
        self._sums.clear()
        return Figures(means, sums)

    def _reference_logprobs(self, inputs: Inputs) -> torch.Tensor:
        """Under the policy as it was before training: the base below the adapter, or TRL's frozen copy."""
        model = self.model if self.ref_model is None else self.ref_model
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        base = nullcontext() if self.ref_model is not None else self.model.disable_adapter()
        with torch.no_grad(), base:
            logprobs: torch.Tensor = self._logprobs_and_entropies(model, ids, mask, inputs["completion_ids"].size(1))[0]
        return logprobs

    def _logprobs_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if self._batch is not None:
            with self.accelerator.autocast():
                return *self.packed_logprobs(args[0], self._batch, self.temperature), None
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = self._logprobs_and_entropies(*args, **kwargs)
        self._logprobs = result[0]
        old = self._inputs["old_per_token_logps"]
        # Rows that came without log-probabilities count as sampled by the policy as it is now.
        known = torch.where(old.isnan(), self._logprobs.detach(), old)
        self._inputs["old_per_token_logps"] = known
        self._note("cross_entropy", -self._logprobs.detach())
        # How far the policy is from the one that sampled: older weights, and another way of computing the same.
        self._note("sampling/logprob_difference", (self._logprobs.detach() - known).abs())
        return result

    def _note(self, name: str, values: torch.Tensor) -> None:
        """The mean over the tokens that are trained; read once the step is done."""
        trained = self._inputs["completion_mask"] * self._inputs["tool_mask"]
        self._metrics["train"][name].append((values * trained).sum() / trained.sum().clamp(min=1))

    def _compute_loss(self, model: Any, inputs: Inputs) -> torch.Tensor:
        self._inputs = inputs
        policy: torch.Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        if not self.world_model.coefficient:
            return policy
        world = self._world_model_loss(inputs)
        self._sums["policy_loss"].append(policy.detach())
        self._sums["world_model_loss"].append(world.detach())
        return policy + self.world_model.coefficient * world

    def _world_model_loss(self, inputs: Inputs) -> torch.Tensor:
        """ECHO: cross-entropy on what the environment wrote, from the forward pass that is there anyway.

        The parts of a step add up to its loss, however it is cut into micro-batches.
        """
        observed = (inputs["completion_mask"] * (1 - inputs["tool_mask"])).float()
        per_row = (-self._logprobs * observed).sum(-1)
        kind = self.world_model.normalization
        if kind == "selected_tokens":
            return per_row.sum() / max(self.observed.tokens, 1)
        if kind == "sequence_mean":
            return (per_row / observed.sum(-1).clamp(min=1)).sum() / max(self.observed.rows, 1)
        longest: int = self.args.max_completion_length
        return per_row.sum() / (max(self.observed.rows, 1) * longest)


def _read(figures: Mapping[str, list[torch.Tensor]]) -> dict[str, list[float]]:
    """Some are numbers already."""
    return {
        key: torch.stack([torch.as_tensor(each) for each in values]).tolist()
        for key, values in figures.items()
        if values
    }


class _Unplaced(GRPOConfig):
    """For a model that is larger than a GPU: it stays where it was loaded."""

    @property
    def place_model_on_device(self) -> bool:
        return False


def make_trainer(
    model: Any,
    tokenizer: Any,
    adapter: Any | None,
    training: Training,
    temperature: float,
    *,
    is_sharded: bool = False,
) -> GroupTrainer:
    loss = training.loss
    # TRL would read the reference anew on every rank; where the model is sharded, so is a copy of it.
    reference = deepcopy(model) if is_sharded and adapter is None and loss.beta else None
    with one_model_at_a_time:
        arguments = (_Unplaced if is_sharded else GRPOConfig)(
            output_dir=str(Path(os.environ.get("TMPDIR", "/tmp"))),  # noqa: S108 - nothing is written: our loop saves
            use_cpu=not torch.cuda.is_available(),
            bf16=model.dtype == torch.bfloat16,
            fp16=model.dtype == torch.float16,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=training.max_tokens,
            learning_rate=training.learning_rate,
            weight_decay=training.weight_decay,
            max_steps=1,
            loss_type=loss.type,
            epsilon=loss.epsilon,
            epsilon_high=loss.ratio_range[1] if loss.type == "cispo" else loss.epsilon_high,
            beta=loss.beta if reference is None else 0.0,
            entropy_coef=loss.entropy_coefficient,
            importance_sampling_level=loss.importance_sampling,
            temperature=temperature,
            gradient_checkpointing=bool(training.gradient_checkpointing),
            gradient_checkpointing_kwargs={"use_reentrant": False},
            seed=training.seed,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GroupTrainer(
            model=model,
            reward_funcs=_unused_reward,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["", ""]}),
            processing_class=tokenizer,
            peft_config=adapter,
        )
    if reference is not None:
        add_fused_lm_head(reference, temperature=trainer.temperature, cast_lm_head_to_fp32=False)
        trainer.beta, trainer.ref_model = loss.beta, reference.requires_grad_(False).eval()
    trainer.world_model = training.world_model
    is_supported = unsupported_reason(trainer.model) is None
    trainer.has_plain_head = adapter is not None and not loss.entropy_coefficient and is_supported
    if trainer.has_plain_head:
        packing.prepare(trainer.model)
    return trainer


def prepared(rows: Sequence[Row], padding: int, device: torch.device, *, is_packed: bool) -> Pass:
    """On its way to the device. Prompts are padded on the left, completions on the right, as TRL expects them."""

    def padded(arrays: list[Any], value: int, side: str) -> torch.Tensor:
        stacked: torch.Tensor = pad(
            [torch.from_numpy(array) for array in arrays], padding_value=value, padding_side=side
        )
        return stacked

    inputs = {
        "prompt_ids": padded([row.prompt for row in rows], padding, "left"),
        "prompt_mask": padded([np.ones_like(row.prompt) for row in rows], 0, "left"),
        "completion_ids": padded([row.completion for row in rows], padding, "right"),
        "completion_mask": padded([row.counted.astype(np.int64) for row in rows], 0, "right"),
        "tool_mask": padded([row.trained.astype(np.int64) for row in rows], 1, "right"),
        "advantages": padded([row.advantages for row in rows], 0, "right"),
        "old_per_token_logps": padded([row.logprobs for row in rows], 0, "right"),
    }
    batch = None
    if is_packed:
        ids, mask = (
            torch.cat([inputs[f"prompt_{kind}"], inputs[f"completion_{kind}"]], dim=1) for kind in ("ids", "mask")
        )
        batch = packing.packed(ids, mask, inputs["completion_ids"].shape[1], device)
    return Pass({name: packing.sent(each, device) for name, each in inputs.items()}, batch)


def fraction_of_batch(loss_type: str, rows: Sequence[Row], total_rows: int, total_tokens: int) -> float:
    """Of the rows where the loss is a mean over rows, else of the trained tokens. Never 0: it is divided by, and rows
    without trained tokens add nothing anyway."""
    if loss_type in _MEAN_OVER_ROWS:
        return len(rows) / total_rows
    return max(trained_tokens(rows), 1) / max(total_tokens, 1)


def _unused_reward(completions: list[Any], **_: Any) -> list[float | None]:
    return [0.0] * len(completions)
