"""Training on the Tinker service: the same loop, with the adapter, the optimiser and sampling on the other side."""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from clotho_contract.config import RunConfig
from clotho_contract.settings import Lora
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import (
    Completion,
    Engine,
    EngineBusyError,
    FinishReason,
    Request,
    Scores,
)
from clotho_trainer.model.tokenizer import load_tokenizer
from clotho_trainer.training.batch import Batch, Row, Rules

log = logging.getLogger(__name__)

_KEY = "TINKER_API_KEY"
_STATE = "tinker.json"  # in a checkpoint: where the service keeps the weights and the optimiser
_LOSSES = {"grpo": "ppo", "bnpo": "ppo", "dr_grpo": "ppo", "dapo": "ppo", "cispo": "cispo"}

_REFUSALS = frozenset({400, 404, 413, 422})

Result = TypeVar("Result")


class TinkerBackend:
    compiles = False

    def __init__(self, config: RunConfig, work: Path) -> None:
        check(config)
        self._sdk = _sdk()
        self._training = config.training
        self._run = config.run.id
        self.tokenizer = load_tokenizer(config.model)
        self.version = 0
        self._service = _asked(self._sdk, self._sdk.ServiceClient)
        self._client = _asked(
            self._sdk,
            lambda: self._service.create_lora_training_client(
                base_model=config.model.name, rank=config.training.lora.rank, seed=config.training.seed
            ),
        )
        self._engine = TinkerEngine(self)

    @property
    def vocabulary(self) -> int:
        return len(self.tokenizer)

    @property
    def context(self) -> int:
        return self._training.max_tokens

    @property
    def rules(self) -> Rules:
        loss = self._training.loss
        return Rules(
            max_tokens=self._training.max_tokens,
            normalization=loss.normalize_advantages,
            mask_truncated=loss.mask_truncated,
            end_tokens=frozenset({self.tokenizer.eos_token_id} - {None}),
            max_staleness=self._training.max_staleness,
        )

    @property
    def engine(self) -> Engine:
        return self._engine

    def rehearse(self) -> None: ...

    def step_expected(self) -> AbstractContextManager[None]:
        return nullcontext()

    def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        types, loss = self._sdk.types, self._training.loss
        low, high = loss.ratio_range
        clipping = {"clip_low_threshold": low, "clip_high_threshold": high}
        data = [self._datum(row, batch.trained_tokens) for row in batch.rows]
        adam = types.AdamParams(
            learning_rate=learning_rate,
            weight_decay=self._training.weight_decay,
            grad_clip_norm=self._training.max_grad_norm,
        )

        def update() -> Any:
            forward = self._client.forward_backward(data, _LOSSES[loss.type], clipping)
            stepping = self._client.optim_step(adam_params=adam)  # queued behind it, so that the service does not idle
            output = forward.result()
            stepping.result()
            return output

        metrics = _asked(self._sdk, update).metrics
        self.version += 1
        figures = {f"tinker/{name}": float(value) for name, value in metrics.items()}
        losses = [float(value) for name, value in metrics.items() if name.startswith(("loss", "total_loss"))]
        return figures | ({"loss": losses[0]} if losses else {}) | {"learning_rate": learning_rate}

    def gather(self) -> None: ...

    def save(self, folder: Path) -> None:
        name = f"{self._run}-step-{self.version}"
        path = _asked(self._sdk, lambda: self._client.save_state(name, overwrite=True).result().path)
        (folder / _STATE).write_text(json.dumps({"path": path}))
        self.tokenizer.save_pretrained(folder)

    def restore(self, folder: Path, step: int) -> None:
        path = json.loads((folder / _STATE).read_text())["path"]
        self._client = _asked(self._sdk, lambda: self._service.create_training_client_from_state_with_optimizer(path))
        self.version = step

    def write_trained(self, spare: object) -> NoReturn:
        raise TrainerError("InvalidConfig", "inference.replicas: the Tinker service has the weights")

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens))

    def sampling_client(self) -> Any:
        """One that samples from the weights as they are now."""
        name = f"{self._run}-policy-{self.version}"

        def publish() -> Any:
            path = self._client.save_weights_for_sampler(name).result().path
            return self._service.create_sampling_client(model_path=path)

        return _asked(self._sdk, publish)

    def _datum(self, row: Row, batch_tokens: int) -> Any:
        """The service sums over tokens: dividing here makes it the mean, whatever the batch's size."""
        types = self._sdk.types
        tokens = [*row.prompt.tolist(), *row.completion.tolist()]
        before = len(row.prompt) - 1
        counted = row.trained & row.counted
        advantages = np.where(counted, row.advantages, 0.0) / max(batch_tokens, 1)
        logprobs = row.logprobs
        if np.isnan(logprobs[counted]).any():
            logprobs = np.asarray(self._engine.logprobs(tokens)[len(row.prompt) :], np.float32)
        inputs = {
            "target_tokens": np.asarray(tokens[1:], np.int64),
            "logprobs": np.concatenate([np.zeros(before), np.where(counted, logprobs, 0.0)]).astype(np.float32),
            "advantages": np.concatenate([np.zeros(before), advantages]).astype(np.float32),
        }
        tensors = {name: types.TensorData.from_numpy(values) for name, values in inputs.items()}
        return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=tensors)


class TinkerEngine:
    name: ClassVar = "tinker"

    def __init__(self, backend: TinkerBackend) -> None:
        self._backend = backend
        self._sampler: tuple[int, Any] | None = None

    async def start(self) -> None:
        await self.publish()

    async def publish(self) -> None:
        version = self._backend.version
        self._sampler = version, await asyncio.to_thread(self._backend.sampling_client)

    def problem(self) -> str | None:
        return None if self._sampler else "no weights have been published to the service yet"

    async def stop(self) -> None:
        self._sampler = None

    def logprobs(self, tokens: list[int]) -> list[float]:
        """Of a whole sequence under the published policy; the first token has none."""
        if self._sampler is None:
            raise EngineBusyError("no weights have been published to the service yet")
        types = self._backend._sdk.types
        values = self._sampler[1].compute_logprobs(types.ModelInput.from_ints(tokens)).result()
        return [0.0 if value is None else float(value) for value in values]

    async def score(self, tokens: tuple[int, ...], top: int) -> Scores:
        if top:
            raise ValueError("the tinker backend has no top log-probabilities")
        _, *values = await asyncio.to_thread(self.logprobs, list(tokens))
        return Scores((None, *values))

    async def generate(self, request: Request) -> list[Completion]:
        if self._sampler is None:
            raise EngineBusyError("no weights have been published to the service yet")
        sampling = request.sampling
        if sampling.min_tokens or sampling.ignore_end:
            raise ValueError("the tinker backend always ends at the end token: min_tokens and ignore_eos cannot be had")
        if sampling.min_p or sampling.has_penalties or sampling.logit_bias or sampling.top_logprobs:
            raise ValueError("the tinker backend has no min_p, penalties, logit_bias or top log-probabilities")
        limit, length = self._backend.context, len(request.prompt)
        if length >= limit:
            raise ValueError(f"the prompt has {length} tokens; training.maxTokens is {limit}")
        version, sampler = self._sampler
        stops: list[Any] = [*sampling.stop] or sorted(sampling.stop_tokens)  # the service takes one kind at a time
        types = self._backend._sdk.types
        parameters = types.SamplingParams(
            max_tokens=min(sampling.max_tokens, limit - length),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            stop=stops or None,
            seed=sampling.seed,
        )
        prompt = types.ModelInput.from_ints(list(request.prompt))
        try:
            answer = await asyncio.wrap_future(sampler.sample(prompt, request.n, parameters))
        except self._backend._sdk.TinkerError as error:
            raise EngineBusyError(f"the Tinker service could not sample: {error}") from error
        return [self._completion(sequence, version, sampling.stop) for sequence in answer.sequences]

    def _completion(self, sequence: Any, version: int, stops: tuple[str, ...]) -> Completion:
        tokens = tuple(sequence.tokens)
        text = str(self._backend.tokenizer.decode(tokens, skip_special_tokens=True))
        stop = next((stop for stop in stops if text.endswith(stop)), None)
        reason: FinishReason = "length" if str(sequence.stop_reason) == "length" else "stop"
        return Completion(
            tokens=tokens,
            logprobs=tuple(sequence.logprobs or ()),
            text=text.removesuffix(stop) if stop else text,
            finish_reason=reason,
            versions=((version, len(tokens)),),
            stop_string=stop,
        )


def check(config: RunConfig) -> None:
    """Refuse what the service would silently leave out."""
    training, lora, usual = config.training, config.training.lora, Lora()
    unknown = {
        f"model.quantization {config.model.quantization}": config.model.quantization != "none",
        f"inference.engine {config.inference.engine}": config.inference.engine != "auto",
        "training.lora.alpha": lora.alpha != usual.alpha,
        "training.lora.dropout": bool(lora.dropout),
        "training.lora.targetModules": lora.target_modules != usual.target_modules,
        "training.loss.beta": bool(training.loss.beta),
        "training.loss.entropyCoefficient": bool(training.loss.entropy_coefficient),
        "training.loss.importanceSampling sequence": training.loss.importance_sampling != "token",
        f"training.loss.type {training.loss.type}": training.loss.type not in _LOSSES,
        "training.worldModel.coefficient": bool(training.world_model.coefficient),
        "training.lora.rank 0": training.lora.rank == 0,
    }
    if wrong := [name for name, asked in unknown.items() if asked]:
        raise TrainerError("InvalidConfig", f"the tinker backend cannot do {', '.join(wrong)}; use the backend trl")
    if not os.environ.get(_KEY):
        raise TrainerError("InvalidConfig", f"training.backend tinker: ${_KEY} is not set")


def _sdk() -> Any:
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    try:
        import tinker  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise TrainerError("InvalidConfig", "training.backend tinker: this image has no tinker package") from error
    return tinker


def _asked(sdk: Any, request: Callable[[], Result]) -> Result:
    try:
        return request()
    except (sdk.AuthenticationError, sdk.PermissionDeniedError) as error:
        raise TrainerError("Unauthorized", f"the Tinker service refused ${_KEY}: {error}") from error
    except sdk.TinkerError as error:
        if _is_about_content(error):
            raise TrainerError("InvalidConfig", f"the Tinker service refused a request: {error}") from error
        raise TrainerError("DependencyUnavailable", f"the Tinker service failed: {error}") from error


def _is_about_content(error: Any) -> bool:
    """The same request would be refused again: by its status, or by the category of a queued request's failure."""
    category = getattr(getattr(error, "category", None), "name", "")
    return getattr(error, "status_code", None) in _REFUSALS or category == "User"
