"""vLLM, as a subprocess on the same GPU or as a server elsewhere, fed with one adapter a policy version."""

import asyncio
import logging
import os
import secrets
import shutil
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from clotho_contract.config import RunConfig
from clotho_contract.lines import lines_of
from clotho_contract.names import TOKEN_VARIABLES
from clotho_contract.retry import reason_of
from clotho_trainer.failures import TrainerError
from clotho_trainer.hardware import gpus
from clotho_trainer.inference.core.engine import (
    Completion,
    EngineBusyError,
    FinishReason,
    Request,
    Scores,
    TopLogprobs,
)
from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

_START_SECONDS = 900.0
_PORT = 8004


class _Logprobs(Struct):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None = None  # by "token_id:5"


class _PromptLogprob(Struct):
    logprob: float
    rank: int | None = None


class _Choice(Struct):
    text: str
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[int, _PromptLogprob] | None] | None = None


class _Answer(Struct):
    choices: list[_Choice]


def command_line(config: RunConfig, adapters: int, context: int, port: int = _PORT) -> list[str]:
    """`processed_logprobs` are those of the distribution that was sampled from, which importance sampling needs."""
    vllm = config.inference.vllm
    return [
        *("vllm", "serve", config.model.name),
        *("--revision", config.model.revision),
        *("--dtype", config.model.dtype),
        *("--host", "127.0.0.1"),
        *("--port", str(port)),
        *("--max-model-len", str(context)),
        *("--max-num-seqs", str(config.inference.max_batch_size)),
        *("--gpu-memory-utilization", str(vllm.memory_share)),
        *("--tensor-parallel-size", str(vllm.tensor_parallel)),
        *("--seed", str(config.training.seed)),
        "--enable-lora",
        *("--max-lora-rank", str(config.training.lora.rank)),
        *("--max-loras", str(adapters)),
        *("--logprobs-mode", "processed_logprobs"),
    ]


class VllmEngine:
    def __init__(
        self, config: RunConfig, live: LiveWeights, folder: Path, context: int, command: list[str] | None = None
    ) -> None:
        vllm = config.inference.vllm
        self._live = live
        live.modules_decode = False  # so that training may compile them
        self._context = min(context, vllm.max_length or context)
        self._adapters = config.training.max_off_policy_batches + 2
        self._gpus = vllm.tensor_parallel
        self._command: list[str] | None = None  # of a server that is ours
        self._prefix, self._folder = "policy", folder
        if vllm.mode == "server":  # others may use it, too, and it may remember adapters of an earlier attempt
            self._prefix = f"{config.run.id}-{secrets.token_hex(3)}"
            self._folder = Path(vllm.adapter_path) / self._prefix
            self._url = vllm.url.rstrip("/")
        else:
            self._command = command or command_line(config, self._adapters, self._context)
            self._url = f"http://127.0.0.1:{self._command[self._command.index('--port') + 1]}"
        self._loaded: deque[tuple[int, str]] = deque()
        self._session: aiohttp.ClientSession | None = None  # made in `start`: it needs the running loop
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            self._folder.mkdir(parents=True)
        except OSError as error:
            raise TrainerError(
                "InvalidConfig", f"inference.vllm.adapterPath: cannot write to {self._folder}: {error.strerror}"
            ) from error
        if self._command is not None:
            await self._spawn(self._command)
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10))
        await self._wait_until_healthy()
        try:
            await self.publish()
        except EngineBusyError as error:
            raise TrainerError("DependencyUnavailable", f"{error}; it must serve with runtime LoRA updates") from error

    async def _spawn(self, command: list[str]) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                env=_environment(self._gpus),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except FileNotFoundError as error:
            raise TrainerError("InvalidConfig", "inference.engine vllm: this image has no vllm command") from error
        self._reader = asyncio.create_task(_log_lines(self._process.stdout))

    async def publish(self) -> None:
        """A new name for all weights: vLLM keys its prefix cache on the name."""
        lineage, version = self._live.stamp
        name = f"{self._prefix}-{f'{lineage}-' if lineage else ''}v{version}"
        if self._loaded and self._loaded[-1][1] == name:
            return
        folder = await asyncio.to_thread(self._write_adapter, name)
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        self._loaded.append((version, name))
        while len(self._loaded) >= self._adapters:
            _, old = self._loaded.popleft()
            await self._post("/v1/unload_lora_adapter", {"lora_name": old})
            shutil.rmtree(self._folder / old, ignore_errors=True)

    def problem(self) -> str | None:
        if self._session is None and self._process is None:
            return "vLLM has not been started"
        if self._process is not None and self._process.returncode is not None:
            return f"vLLM exited with code {self._process.returncode}"
        return None

    async def stop(self) -> None:
        if self._session is not None:
            if self._command is None:
                await self._leave_server()
            await self._session.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), timeout=20)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def _leave_server(self) -> None:
        with suppress(EngineBusyError):
            for _, name in self._loaded:
                await self._post("/v1/unload_lora_adapter", {"lora_name": name})
        shutil.rmtree(self._folder, ignore_errors=True)

    async def generate(self, request: Request) -> list[Completion]:
        if problem := self.problem():
            raise EngineBusyError(problem)
        if len(request.prompt) >= self._context:
            raise ValueError(f"the prompt has {len(request.prompt)} tokens; the engine's context is {self._context}")
        version, name = self._loaded[-1]  # the whole answer comes from this adapter
        answer = await self._complete(_completion_request(request, name, self._context))
        return [_completion(choice, version, request.sampling.top_logprobs) for choice in answer.choices]

    async def score(self, tokens: tuple[int, ...], top: int) -> Scores:
        if problem := self.problem():
            raise EngineBusyError(problem)
        if len(tokens) >= self._context:
            raise ValueError(f"the prompt has {len(tokens)} tokens; the engine's context is {self._context}")
        body = {"model": self._loaded[-1][1], "prompt": list(tokens), "max_tokens": 1, "prompt_logprobs": top}
        answer = await self._complete(body | {"logprobs": 0, "return_token_ids": True})
        return _scores(tokens, answer.choices[0].prompt_logprobs or [], top)

    async def _complete(self, request: dict[str, Any]) -> _Answer:
        body = await self._post("/v1/completions", request)
        try:
            return msgspec.json.decode(body, type=_Answer)
        except msgspec.MsgspecError as error:
            raise EngineBusyError(f"vLLM sent an answer of an unknown form: {error}") from error

    def _write_adapter(self, name: str) -> Path:
        staging, final = self._folder / f".{name}", self._folder / name
        with self._live.training():
            self._live.save_pretrained(staging)
        staging.rename(final)
        return final

    async def _wait_until_healthy(self) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                while True:
                    if problem := self.problem():
                        raise TrainerError("DependencyUnavailable", f"{problem} before it could serve; see the log")
                    with suppress(EngineBusyError):
                        await self._ask("GET", "/health")
                        return
                    await asyncio.sleep(0.2)
        except TimeoutError as error:
            raise TrainerError("DependencyUnavailable", f"vLLM did not start in {_START_SECONDS:.0f} s") from error

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        if self._session is None:
            raise EngineBusyError("vLLM has not been started")
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                answer = await response.read()
        except aiohttp.ClientError as error:
            raise EngineBusyError(f"vLLM does not answer: {reason_of(error)}") from error
        if response.status >= 400:
            raise EngineBusyError(f"vLLM refused {path}: {response.status} {answer[:300].decode(errors='replace')}")
        return answer


async def _log_lines(output: asyncio.StreamReader | None) -> None:
    if output is not None:
        async for line in lines_of(output):
            log.info("%s", line.rstrip())


def _completion_request(request: Request, model: str, context: int) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "model": model,
        "prompt": list(request.prompt),
        "n": request.n,
        "max_tokens": min(sampling.max_tokens, context - len(request.prompt)),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias},
        "seed": sampling.seed,
        "min_tokens": sampling.min_tokens,
        "ignore_eos": sampling.ignore_end,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(sampling.stop_tokens),
        "logprobs": sampling.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def _completion(choice: _Choice, version: int, top: int) -> Completion:
    reason: FinishReason = "length" if choice.finish_reason == "length" else "stop"
    return Completion(
        tokens=tuple(choice.token_ids),
        logprobs=tuple(choice.logprobs.token_logprobs),
        text=choice.text,
        finish_reason=reason,
        versions=((version, len(choice.token_ids)),),
        stop_string=choice.stop_reason if isinstance(choice.stop_reason, str) else None,
        top_logprobs=tuple(_alternatives(entry, top) for entry in choice.logprobs.top_logprobs or ()) if top else (),
    )


def _alternatives(entry: dict[str, float], top: int) -> TopLogprobs:
    """vLLM adds the sampled token where it is not among the likeliest."""
    ordered = sorted(entry.items(), key=lambda pair: -pair[1])[:top]
    return tuple((int(name.removeprefix("token_id:")), logprob) for name, logprob in ordered)


def _scores(tokens: tuple[int, ...], entries: list[dict[int, _PromptLogprob] | None], top: int) -> Scores:
    logprobs: list[float | None] = []
    alternatives: list[TopLogprobs | None] = []
    for token, entry in zip(tokens, entries, strict=True):
        logprobs.append(entry[token].logprob if entry else None)
        ordered = sorted((entry or {}).items(), key=lambda pair: -pair[1].logprob)[:top]
        alternatives.append(tuple((other, value.logprob) for other, value in ordered) if entry else None)
    return Scores(tuple(logprobs), tuple(alternatives) if top else ())


def _environment(gpu_count: int) -> dict[str, str]:
    """vLLM needs no secrets but the model's; the run's tokens stay here."""
    hidden = {*TOKEN_VARIABLES, "WANDB_API_KEY", "TINKER_API_KEY"}
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    visible = {"CUDA_VISIBLE_DEVICES": gpus.first(gpu_count)} if gpu_count > 1 else {}
    return kept | visible | {"PATH": path, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
