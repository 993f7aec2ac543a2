"""Training on this pod: TRL's objective, one optimiser, and an engine that decodes from the same weights."""

import hashlib
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct

from clotho_contract.config import RunConfig
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.choice import choose_engine
from clotho_trainer.inference.core.engine import Engine
from clotho_trainer.inference.paged.engine import FastEngine
from clotho_trainer.inference.paged.memory import OPTIMIZER_BYTES
from clotho_trainer.model import load
from clotho_trainer.model.architecture import compute_quantized, trainable_parameters, unsupported_reason
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.memory_file import MemoryFile
from clotho_trainer.model.tokenizer import load_tokenizer
from clotho_trainer.model.trained import write_trained
from clotho_trainer.training.batch import Batch, Row, Rules, blank, made_up, micro_batches, trained_tokens
from clotho_trainer.training.local import grpo, joint, optimizer_state, passes, sharding
from clotho_trainer.training.local.optimizer_state import Moment
from clotho_trainer.training.local.team import Alone, Report, contact

log = logging.getLogger(__name__)

_OTHER_MODEL = (
    "this rank has loaded a model of other shapes or another precision than rank 0: all trainer pods need the same "
    "files, and model.dtype should not be auto"
)


def _gpu_memory() -> dict[str, float | None]:
    """The most that was in use since the last step; nothing on a CPU."""
    if not torch.cuda.is_available():
        return {}
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return {"gpu/memory_peak_bytes": float(peak)}


class _Standing(Struct, frozen=True):
    """Where rank 0 is, but for the tensors themselves."""

    version: int
    model: str  # of which names, shapes and precision
    scaler: dict[str, float]
    moments: list[Moment]


def load_backend(config: RunConfig, work: Path, rank: int = 0) -> "LocalBackend":
    """Of a model that will be sharded, only rank 0 reads the weights, and into the host's memory."""
    tokenizer = load_tokenizer(config.model)
    where: load.Where = "device" if config.sharding == "none" else "nowhere" if rank else "host"
    return LocalBackend(config, load.load_model(config.model, tokenizer, where), tokenizer, work, rank)


class LocalBackend:
    def __init__(self, config: RunConfig, model: Any, tokenizer: Any, work: Path, rank: int = 0) -> None:
        training = config.training
        self._is_sharded = config.sharding != "none"
        if self._is_sharded and model.dtype == torch.float16:
            raise TrainerError("InvalidConfig", "trainer.sharding fsdp cannot train in float16: use bfloat16")
        adapter = load.adapter_config(training.lora, model)
        if adapter is None and model.dtype != torch.float32:
            log.warning("full weights in %s lose small updates; model.dtype float32 keeps them", model.dtype)
        self._end_tokens = load.end_tokens(model, tokenizer)
        with load.adapting(training.lora, model):
            self._trainer = grpo.make_trainer(
                model, tokenizer, adapter, training, config.inference.temperature, is_sharded=self._is_sharded
            )
        if adapter is not None:
            load.sharpen_adapters(self._trainer.model)
        compute_quantized(self._trainer.model, config.model.quantization)
        self._team = Alone()
        self._gathered: dict[str, Any] | None = None  # the optimiser's state, for the next checkpoint
        self._training = training
        self._live = LiveWeights(self._trainer.model, tokenizer)
        self._optimizer: torch.optim.Optimizer = self._trainer.create_optimizer()
        self._scaler = torch.amp.GradScaler(enabled=self._live.compute_dtype == torch.float16)
        self._tokens_a_pass = passes.TOKENS
        self._rows_a_pass = training.micro_batch_size
        self._has_noted_blindness = False
        recomputes = training.gradient_checkpointing
        if recomputes is None:
            recomputes = self._is_sharded  # one is short of memory, or would not shard
        self._activations = passes.all_alike(self._trainer.model, recompute=recomputes)
        self._compiles = False
        passes.keep_compiled(work / "compiled")
        self._engine = choose_engine(config, self._live, self._end_tokens, work, rank)
        self._refresh_joint = self._join()
        if self._live.device.type == "cuda" and not self._is_sharded:
            vllm_starts_here = config.inference.engine == "vllm" and config.inference.vllm.mode == "colocate"
            self._plan_passes(config.inference.vllm.memory_share if vllm_starts_here else 0.0)
            is_compilable = config.model.quantization != "nf4" or unsupported_reason(self._live.model) is None
            if not self._live.modules_decode and not training.lora.dropout and is_compilable:
                passes.compile_layers(self._live.model)
                self._compiles = True

    @property
    def version(self) -> int:
        return self._live.version

    @property
    def vocabulary(self) -> int:
        return int(self._live.model.get_input_embeddings().num_embeddings)

    @property
    def context(self) -> int:
        return load.context_length(self._live.model)

    @property
    def tokenizer(self) -> Any:
        return self._live.tokenizer

    @property
    def rules(self) -> Rules:
        training = self._training
        return Rules(
            max_tokens=min(training.max_tokens, self.context),
            normalization=training.loss.normalize_advantages,
            mask_truncated=training.loss.mask_truncated,
            end_tokens=self._end_tokens,
            max_staleness=training.max_staleness,
        )

    @property
    def live(self) -> LiveWeights:
        return self._live

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def compiles(self) -> bool:
        return self._compiles

    def rehearse(self) -> None:
        """It changes no weights, so that it takes no turn from decoding. Rows with padding would need each length."""
        if not self._compiles or not self._trainer.has_plain_head:
            return
        began = time.monotonic()
        with self._live.training():
            pass  # its modules are those of training from now on: where layers are compiled, others decode
        batch = made_up(2)
        self._accumulate(batch, [batch.rows])
        self._optimizer.zero_grad(set_to_none=True)
        self._trainer.take_figures()
        self._compiles = False
        log.info("the layers are compiled, after %.0f s", time.monotonic() - began)

    def step_expected(self) -> AbstractContextManager[None]:
        return self._live.training_expected()

    def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        parts = self._parts(self._shares(batch)[self._team.rank])
        first = self._prepared(parts[0]) if parts else None  # before its turn, while decoding goes on
        with self._live.training():  # the rows travel in this turn, too: decoding and collectives never overlap
            self._team.lead(batch, learning_rate)
            return self._step(batch, learning_rate, first)

    def follow(self) -> None:
        """The step that rank 0 takes, on this rank's share of its batch."""
        with self._live.training():
            self._step(*self._team.follow())

    def join(self, team: Alone) -> None:
        """Steps are taken together from now on, and from where rank 0 is: after this all ranks are equal."""
        self._team = team
        with self._live.training():
            before = self._optimizer
            model, moments = _fingerprint(self._live.model), optimizer_state.moments(before)
            mine = _Standing(self.version, model, self._scaler.state_dict(), moments)
            rank_0 = msgspec.json.decode(team.broadcast_bytes(msgspec.json.encode(mine)), type=_Standing)
            if rank_0.model != mine.model:
                raise TrainerError("InvalidConfig", _OTHER_MODEL)
            if self._is_sharded:
                self._shard()
            else:
                team.broadcast(each.data for each in self._live.model.parameters() if each.requires_grad)
            optimizer_state.receive(team, rank_0.moments, before, self._optimizer)
            if self._scaler.is_enabled():
                self._scaler.load_state_dict(rank_0.scaler)
            self._live.version = rank_0.version
            self._gather_trained()

    def _shard(self) -> None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        for model in filter(None, (self._trainer.model, self._trainer.ref_model)):
            sharding.shard(model, self._team, device)
        self._trainer.packed_logprobs = sharding.packed_logprobs
        self._trainer.optimizer = None
        self._optimizer = self._trainer.create_optimizer()

    def _gather_trained(self) -> None:
        """Rank 0 has what the others lack: a copy of all that is trained, to save it and for inference."""
        if self._is_sharded:
            trained = {name: each for name, each in self._live.model.named_parameters() if each.requires_grad}
            self._live.whole = sharding.gather(trained, keeps=self._team.rank == 0)

    def follow_gather(self) -> None:
        """What rank 0 gathers, the others have to send."""
        with self._live.training():
            sharding.gather_state(self._optimizer, keeps=False)

    def _step(self, batch: Batch, learning_rate: float, first: grpo.Pass | None = None) -> dict[str, float]:
        """`first`: what was prepared of the first pass."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self._refresh_joint is not None:
            self._refresh_joint()
        with contact(computes=True):
            report = self._accumulate_within_memory(batch, first)
        report = self._team.merged(report)
        trainable = optimizer_state.parameters(self._optimizer)
        self._team.sum_gradients(trainable)
        self._scaler.unscale_(self._optimizer)
        loss = math.nan if report.loss is None else report.loss
        norm = self._clip(trainable)
        if not math.isfinite(loss) or (not math.isfinite(norm) and not self._scaler.is_enabled()):
            self._optimizer.zero_grad(set_to_none=True)
            raise TrainerError(
                "NonFiniteLoss",
                f"step {self.version + 1} has loss {loss} and gradient norm {norm}; the weights are as they were. "
                "Lower training.learningRate, or train in bfloat16 or float32",
            )
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        self._live.version += 1
        self._gather_trained()
        self._compiles = False
        figures = report.means | report.sums | report.peaks
        known = {name: math.nan if value is None else value for name, value in figures.items()}
        return known | {"loss": loss, "gradient_norm": norm, "learning_rate": learning_rate}

    def gather(self) -> None:
        if self._is_sharded:
            with self._live.training():
                self._team.announce("gather")
                self._gathered = sharding.gather_state(self._optimizer, keeps=True)

    def save(self, folder: Path) -> None:
        self.save_model(folder)
        with self._live.training():
            torch.save(self._gathered or self._optimizer.state_dict(), folder / "optimizer.pt")
            self._gathered = None
            torch.save({"scaler": self._scaler.state_dict(), "random": _random_state()}, folder / "state.pt")

    def save_model(self, folder: Path) -> None:
        with self._live.training():
            self._live.save_pretrained(folder)
            self._live.tokenizer.save_pretrained(folder)

    def restore(self, folder: Path, step: int) -> None:
        device = self._live.device
        with self._live.training():
            self._load_weights(folder)
            self._optimizer.load_state_dict(torch.load(folder / "optimizer.pt", map_location=device, weights_only=True))
            state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
            if self._scaler.is_enabled():
                self._scaler.load_state_dict(state["scaler"])
            _restore_random_state(state["random"])
            self._live.version = step

    def write_trained(self, spare: MemoryFile | None) -> tuple[int, MemoryFile]:
        return write_trained(self._live, spare)

    def decode(self, tokens: list[int]) -> str:
        return str(self._live.tokenizer.decode(tokens))

    def _load_weights(self, folder: Path) -> None:
        from safetensors.torch import load_file

        weights: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights |= load_file(file, device=str(self._live.device))
        has_adapters = (folder / "adapter_config.json").exists()
        if has_adapters != bool(self._training.lora.rank):
            held, wanted = ("adapters", "full weights") if has_adapters else ("full weights", "adapters")
            raise _other_shape(folder, f"{held}, but training.lora.rank {self._training.lora.rank} trains {wanted}")
        try:
            outcome = self._put_weights(weights)
        except RuntimeError as error:
            raise _other_shape(folder, "weights of other shapes than this model and training.lora.rank have") from error
        if outcome.unexpected_keys:
            raise _other_shape(folder, f"weights this model does not have, such as {outcome.unexpected_keys[0]}")

    def _put_weights(self, weights: dict[str, torch.Tensor]) -> Any:
        if self._training.lora.rank:
            from peft import set_peft_model_state_dict

            return set_peft_model_state_dict(self._live.model, weights)
        return self._live.model.load_state_dict(weights, strict=False)  # tied weights are saved once

    def _join(self) -> Callable[[], None] | None:
        """Where training computes with the engine's matrices, too: what has to precede a step."""
        if not isinstance(self._engine, FastEngine) or self._training.lora.dropout or not self._trainer.has_plain_head:
            return None
        return joint.join(self._live.model, self._engine.weights)

    def _plan_passes(self, promised_share: float) -> None:
        """Activations are kept as far as they fit beside weights, optimiser and cache, unless the config decides."""
        if self._training.gradient_checkpointing is not None:
            return
        promised = trainable_parameters(self._trainer.model) * OPTIMIZER_BYTES
        free = passes.free_memory(promised, promised_share)
        self._activations = passes.measured(self._trainer.model, self._trainer.accelerator.autocast, free)
        self._tokens_a_pass = self._rows_a_pass * self.rules.max_tokens or self._activations.best_pass()
        log.info(
            "activations: %d tokens a pass, %d of %d layers recompute them; %.1f MiB a token when kept, %.1f GiB free",
            self._tokens_a_pass,
            self._activations.recomputed_layers(self._tokens_a_pass),
            self._activations.layers,
            self._activations.kept_bytes * self._activations.layers / 2**20,
            free / 2**30,
        )

    def _clip(self, trainable: Sequence[torch.nn.Parameter]) -> float:
        """The norm over all ranks, before clipping."""
        gradients = [each.grad for each in trainable if each.grad is not None]
        norm = sharding.whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(trainable, self._training.max_grad_norm, norm)
        return float(norm)

    def _accumulate_within_memory(self, batch: Batch, first: grpo.Pass | None) -> Report:
        """No rank waits for another meanwhile, so each may repeat its share on its own; unless layers are gathered."""
        shares = self._shares(batch)
        rows = shares[self._team.rank]
        while True:
            try:
                loss = self._accumulate(batch, self._parts(rows), first)
                figures = self._trainer.take_figures()
                if self._is_sharded:
                    self._keep_up(batch, len(self._parts(rows)), max(len(self._parts(share)) for share in shares))
                return Report(loss, trained_tokens(rows), dict(figures.means), dict(figures.sums), _gpu_memory())
            except torch.OutOfMemoryError as error:
                if self._is_sharded:
                    raise _out_of_memory(error) from error
                first = None
                self._optimizer.zero_grad(set_to_none=True)
                self._trainer.take_figures()
                torch.cuda.empty_cache()
                if self._activations.budget and self._training.gradient_checkpointing is None:
                    self._activations.budget = 0.0
                elif not self._shrink(rows):
                    raise
                log.warning(
                    "out of GPU memory: the step is repeated, activations %s, with %s a forward pass",
                    "kept" if self._activations.budget else "recomputed",
                    f"{self._rows_a_pass} sequences" if self._rows_a_pass else f"{self._tokens_a_pass} tokens",
                )

    def _shares(self, batch: Batch) -> Sequence[Sequence[Row]]:
        """Of the rows that change anything, by rank."""
        return self._team.shares(batch.rows if self._trainer.needs_all_rows else batch.rows_with_advantages)

    def _shrink(self, rows: Sequence[Row]) -> bool:
        """Whether there is anything left to halve."""
        if self._rows_a_pass:
            self._rows_a_pass, before = max(self._rows_a_pass // 2, 1), self._rows_a_pass
            return before > 1
        longest = max(row.length for row in rows)
        self._tokens_a_pass, before = max(self._tokens_a_pass // 2, longest), self._tokens_a_pass
        return before > longest

    def _parts(self, rows: Sequence[Row]) -> list[list[Row]]:
        return micro_batches(
            rows,
            rows_each=self._rows_a_pass,
            tokens_each=self._tokens_a_pass,
            is_packed=self._trainer.has_plain_head,
        )

    def _keep_up(self, batch: Batch, passes: int, most: int) -> None:
        """The ranks gather sharded layers together, so each takes as many passes as the one with the most."""
        row = blank(min(batch.rows, key=lambda each: each.length))
        self._accumulate(batch, [[row]] * (most - passes))
        self._trainer.take_figures()

    def _accumulate(self, batch: Batch, parts: Sequence[Sequence[Row]], first: grpo.Pass | None = None) -> float:
        """The part of the batch's loss that comes from these rows."""
        self._trainer.observed = batch.observed
        self._note_blindness(batch)
        trained = batch.trained_tokens
        tokens = torch.tensor(float(trained), device=self._live.device)
        losses: list[torch.Tensor] = []
        coming = first
        for part, following in zip_longest(parts, parts[1:]):
            work = coming or self._prepared(part)
            self._trainer.plan_accumulation(
                grpo.fraction_of_batch(self._training.loss.type, part, len(batch.rows), trained)
            )
            loss = self._loss(work, tokens)
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            coming = self._prepared(following) if following else None  # while the device computes
        return float(sum(losses))

    def _note_blindness(self, batch: Batch) -> None:
        """Environments are known by their tokens alone: only a batch shows that they wrote none."""
        if self._training.world_model.coefficient and not batch.observed.tokens and not self._has_noted_blindness:
            self._has_noted_blindness = True
            log.warning("training.worldModel has nothing to learn from: no token of this batch is an environment's")

    def _prepared(self, rows: Sequence[Row]) -> grpo.Pass:
        padding, device = self._live.tokenizer.pad_token_id, self._live.device
        return grpo.prepared(rows, padding, device, is_packed=self._trainer.has_plain_head)

    def _loss(self, work: grpo.Pass, tokens: torch.Tensor) -> torch.Tensor:
        work.inputs["num_items_in_batch"] = tokens
        recomputed, held = self._activations.recomputed_layers(work.tokens), passes.held_bytes()
        loss = self._trainer.loss(work, recomputed)
        self._activations.measure(work.tokens, recomputed, passes.held_bytes() - held)
        return loss


def _fingerprint(model: Any) -> str:
    tensors = [(name, str(each.dtype), tuple(each.shape)) for name, each in model.named_parameters()]
    return hashlib.sha256(repr(tensors).encode()).hexdigest()


def _out_of_memory(error: torch.OutOfMemoryError) -> TrainerError:
    """The other ranks wait in the middle of their pass for this one: they cannot be asked to repeat it."""
    return TrainerError(
        "OutOfMemory",
        f"{str(error).splitlines()[0].rstrip('.')}. With trainer.sharding fsdp a step is not repeated in smaller "
        "passes: lower training.microBatchSize or training.maxTokens, or add ranks",
    )


def _other_shape(folder: Path, difference: str) -> TrainerError:
    advice = "restore the old settings or start a run with a new name"
    return TrainerError("InvalidConfig", f"the checkpoint {folder.name} holds {difference}; {advice}")


def _random_state() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
