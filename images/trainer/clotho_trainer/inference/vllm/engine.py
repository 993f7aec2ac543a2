"""The engine that asks vLLM: starts its process where it is ours, and hands it each version of the policy."""

import asyncio
import logging
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from clotho_contract.config import RunConfig
from clotho_contract.lines import lines_of
from clotho_contract.names import TOKEN_VARIABLES
from clotho_trainer.failures import TrainerError
from clotho_trainer.hardware import gpus
from clotho_trainer.inference.core.engine import Completion, EngineBusyError, Request, Scores
from clotho_trainer.inference.vllm import completions
from clotho_trainer.inference.vllm.client import VllmClient
from clotho_trainer.inference.vllm.policies import Adapters, Policies, Weights
from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

_START_SECONDS = 900.0
_PORT = 8004


def command_line(config: RunConfig, context: int, port: int | None = None) -> list[str]:
    """`processed_logprobs` are those of the distribution that was sampled from, which importance sampling needs."""
    vllm = config.inference.vllm
    return [
        *("vllm", "serve", config.model.name),
        *("--revision", config.model.revision),
        *("--dtype", config.model.dtype),
        *("--host", "127.0.0.1"),  # nothing but this engine may ask: it can change the weights
        *("--port", str(port or _PORT)),
        *("--max-model-len", str(context)),
        *("--max-num-seqs", str(config.decoded_together)),
        *("--gpu-memory-utilization", str(vllm.memory_share)),
        *("--tensor-parallel-size", str(vllm.tensor_parallel)),
        *("--seed", str(config.training.seed)),
        *_adapter_options(config),
        *("--logprobs-mode", "processed_logprobs"),
    ]


def _adapter_options(config: RunConfig) -> list[str]:
    if not config.training.lora.rank:
        return []
    rank, most = str(config.training.lora.rank), str(_most_adapters(config))
    return ["--enable-lora", "--max-lora-rank", rank, "--max-loras", most]


def _most_adapters(config: RunConfig) -> int:
    return config.training.max_off_policy_batches + 2


class VllmEngine:
    name: ClassVar = "vllm"

    def __init__(
        self, config: RunConfig, live: LiveWeights, folder: Path, context: int, command: list[str] | None = None
    ) -> None:
        vllm = config.inference.vllm
        live.modules_decode = False  # so that training may compile them
        self._context = min(context, vllm.max_length or context)
        self._gpus = vllm.tensor_parallel
        self._command: list[str] | None = None  # of a server that is ours
        prefix, self._folder = "policy", folder
        if vllm.mode == "server":  # others may use it, too, and it may remember adapters of an earlier attempt
            prefix = f"{config.run.id}-{secrets.token_hex(3)}"
            self._folder = Path(vllm.adapter_path) / prefix
            url = vllm.url
        else:
            self._command = command or command_line(config, self._context)
            url = f"http://127.0.0.1:{self._command[self._command.index('--port') + 1]}"
        self._client = VllmClient(url)
        self._policies: Policies
        if config.training.lora.rank:
            self._policies = Adapters(live, self._client, self._folder, prefix, _most_adapters(config))
            self._variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        else:
            self._policies = Weights(live, self._client, self._folder, config.model.name)
            self._variables = {"VLLM_SERVER_DEV_MODE": "1"}  # for the routes that change weights
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
        await self._client.open()
        await self._wait_until_healthy()
        try:
            await self.publish()
        except EngineBusyError as error:
            raise TrainerError("DependencyUnavailable", f"{error}; it must serve with runtime LoRA updates") from error

    async def _spawn(self, command: list[str]) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                env=_environment(self._gpus) | self._variables,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except FileNotFoundError as error:
            raise TrainerError("InvalidConfig", "inference.engine vllm: this image has no vllm command") from error
        self._reader = asyncio.create_task(_log_lines(self._process.stdout))

    async def publish(self) -> None:
        await self._policies.publish()

    def problem(self) -> str | None:
        if not self._client.is_open and self._process is None:
            return "vLLM has not been started"
        if self._process is not None and self._process.returncode is not None:
            return f"vLLM exited with code {self._process.returncode}"
        return self._policies.problem()

    async def stop(self) -> None:
        if self._client.is_open:
            if self._command is None:
                await self._policies.withdraw()
            await self._client.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), timeout=20)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def generate(self, request: Request) -> list[Completion]:
        async with self._serving(request.prompt) as (version, model):
            answer = await self._complete(completions.completion_request(request, model, self._context))
        top = request.sampling.top_logprobs
        return [completions.completion(choice, version, top) for choice in answer.choices]

    async def score(self, tokens: tuple[int, ...], top: int) -> Scores:
        async with self._serving(tokens) as (_, model):
            answer = await self._complete(completions.score_request(tokens, model, top))
        return completions.scores(tokens, answer.choices[0].prompt_logprobs or [], top)

    @asynccontextmanager
    async def _serving(self, prompt: tuple[int, ...]) -> AsyncIterator[tuple[int, str]]:
        """The whole answer comes from this version."""
        if len(prompt) >= self._context:
            raise ValueError(f"the prompt has {len(prompt)} tokens; the engine's context is {self._context}")
        async with self._policies.served() as served:
            if problem := self.problem():
                raise EngineBusyError(problem)
            yield served

    async def _complete(self, request: dict[str, Any]) -> completions.Answer:
        return completions.decode(await self._client.post("/v1/completions", request))

    async def _wait_until_healthy(self) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                while True:
                    if problem := self.problem():
                        raise TrainerError("DependencyUnavailable", f"{problem} before it could serve; see the log")
                    with suppress(EngineBusyError):
                        await self._client.get("/health")
                        return
                    await asyncio.sleep(0.2)
        except TimeoutError as error:
            raise TrainerError("DependencyUnavailable", f"vLLM did not start in {_START_SECONDS:.0f} s") from error


async def _log_lines(output: asyncio.StreamReader | None) -> None:
    if output is not None:
        async for line in lines_of(output):
            log.info("%s", line.rstrip())


def _environment(gpu_count: int) -> dict[str, str]:
    """vLLM needs no secrets but the model's; the run's tokens stay here."""
    hidden = {*TOKEN_VARIABLES, "WANDB_API_KEY", "TINKER_API_KEY"}
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    visible = {"CUDA_VISIBLE_DEVICES": gpus.first(gpu_count)} if gpu_count > 1 else {}
    return kept | visible | {"PATH": path}
