"""Training from Python, without Kubernetes: the pod's own code on a laptop or in a notebook."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import isclass, iscoroutinefunction
from pathlib import Path
from typing import Any

import msgspec

from clotho_contract import config as run_config
from clotho_contract import config_file
from clotho_contract.config import ConfigError, RunConfig
from clotho_contract.inline import Inline, Tools
from clotho_contract.settings import Export, Ollama, Quantization
from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError, classify
from clotho_trainer.process import preflight
from clotho_trainer.process.preflight import Given
from clotho_trainer.process.training import Training
from clotho_trainer.reporting.board import Board
from clotho_trainer.rollouts.inline import records
from clotho_trainer.rollouts.inline.rewards import Measure, Reward
from clotho_trainer.rollouts.inline.rollouts import Conduct
from clotho_trainer.rollouts.inline.source import InlineSource
from clotho_trainer.rollouts.inline.task import Task, conduct_of, make_task, rewards_of
from clotho_trainer.rollouts.inline.tools import tools_from
from clotho_trainer.training import volume_lock
from clotho_trainer.training.backend import Backend
from clotho_trainer.training.checkpoints import Checkpoints

Rewards = Mapping[str, Callable[..., Any]] | Sequence[Reward | Callable[..., Any]]

log = logging.getLogger(__name__)

_IDENTITY = {"name": "local", "namespace": "local", "id": "local"}  # only a cluster has others
_WAKE_SECONDS = 0.2  # a signal that another thread received is seen by then
_IN_MEMORY = "memory.jsonl"  # the path in the config for records given in Python


@dataclass
class TrainingResult:
    """The trained policy, still in memory, and how it came about."""

    metrics: list[dict[str, float]]  # one entry a step
    is_finished: bool  # False when it was interrupted; training again with the same output goes on
    message: str
    checkpoint: Path
    _backend: Backend = field(repr=False)
    _instructions: str = field(repr=False)
    _schemas: Sequence[Mapping[str, Any]] = field(repr=False)  # of the tools that it was trained with

    @property
    def final_loss(self) -> float | None:
        return self.metrics[-1].get("loss") if self.metrics else None

    @property
    def final_reward(self) -> float | None:
        return self.metrics[-1].get("reward/mean") if self.metrics else None

    def save_model(self, path: str | Path) -> Path:
        """The adapter, or the full weights where those were trained, with the tokenizer."""
        from clotho_trainer.generation import local

        folder = Path(path)
        local(self._backend).save_model(folder)
        return folder

    def generate(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.7,
        repetition_penalty: float = 1.2,
        tools: Sequence[Any] | None = None,
        instructions: str | None = None,
    ) -> str:
        """The trained policy's answer without its <think> block; tools and instructions default to the training's."""
        from clotho_trainer.generation import GenerationOptions, generate

        system = self._instructions if instructions is None else instructions
        schemas = self._schemas if tools is None else [tool.schema for tool in tools_from(list(tools), "tools")]
        options = GenerationOptions(max_new_tokens, temperature, repetition_penalty, system, schemas)
        return generate(self._backend, prompt, options)

    def export(self, path: str | Path, *formats: str, quantization: Quantization = "q8_0") -> Path:
        """Merged weights as `gguf` (the default) or `safetensors`, from the last checkpoint."""
        settings = _export_settings(formats or ("gguf",), quantization)
        return self._export(Path(path), settings)

    def to_ollama(
        self,
        name: str,
        *,
        quantization: Quantization = "q8_0",
        url: str = "http://127.0.0.1:11434",
        path: str | Path | None = None,
    ) -> Path:
        """A GGUF file with its Modelfile, registered under that name with an Ollama server."""
        settings = msgspec.structs.replace(_export_settings(("gguf",), quantization), ollama=Ollama(url=url, name=name))
        return self._export(Path(path) if path else self.checkpoint.parents[1] / "export", settings)

    def _export(self, folder: Path, settings: Export) -> Path:
        from clotho_trainer.export.run import export

        export(self.checkpoint, folder, settings)
        return folder


def train(
    run: RunConfig | Mapping[str, Any] | str | Path,
    *,
    dataset: Sequence[Mapping[str, Any]] | None = None,
    rewards: Rewards = (),
    tools: Any = None,
    output: str | Path | None = None,
) -> TrainingResult:
    """Train as a run without environments would, and hand back the policy.

    run      what `/etc/clotho/run.yaml` holds, as a file or as an object: model, training, inline, inference, wandb;
             or another trainer's config file, as `clotho run start -f` takes it
    dataset  records, instead of inline.dataset
    rewards  functions `(output, expected) -> number` by name, beside those of inline.rewards
    tools    functions or {schema, function} pairs; a class whose methods are the tools; or an async rollout function
    output   folder for checkpoints; training that finds some there goes on from them
    """
    given = Given(rewards=bool(rewards), tools=tools is not None, dataset=dataset is not None)
    config = preflight.checked(_config(run, given), given)
    if config.inline is None:
        raise TrainerError("InvalidConfig", "training from Python needs inline: a dataset and rewards")
    task = _task(config.inline, dataset, rewards, tools)
    folder = Path(output) if output else Path(tempfile.mkdtemp(prefix="clotho-"))
    return _Job(msgspec.structs.replace(config, continues_other_runs=True), config.inline, task, folder).run()


class _Job:
    """In a thread of its own: notebooks have an event loop already."""

    def __init__(self, config: RunConfig, inline: Inline, task: Task, folder: Path) -> None:
        self._instructions, self._schemas = inline.instructions, task.schemas
        source = InlineSource(config, inline, task)
        self._metrics: list[dict[str, float]] = []
        self._board = Board(config.training.steps, config.stall_after_seconds)
        self._board.on_report = lambda step, figures: self._metrics.append({"step": step, **figures})
        self._checkpoints = Checkpoints(folder / "checkpoints", config.training.checkpoint.keep, config.run.id)
        self._lock = volume_lock.held(folder, config.run, lambda reason: None)
        self._training = Training(config, lambda: config.training.steps, source, self._checkpoints, self._board, folder)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def run(self) -> TrainingResult:
        with ThreadPoolExecutor(1, thread_name_prefix="clotho") as executor:
            running = executor.submit(asyncio.run, self._run())
            while not running.done():
                try:
                    wait([running], timeout=_WAKE_SECONDS)
                except KeyboardInterrupt:  # finish the step and save, as a pod does
                    self._ask_to_stop()
        end = running.result()
        newest = self._checkpoints.newest()
        if end.reason not in ("Finished", "Stopped") or newest is None:
            raise TrainerError(end.reason, end.message)
        finished = end.reason == "Finished"
        return TrainingResult(
            self._metrics,
            finished,
            end.message,
            Path(newest.path),
            self._training.backend,
            self._instructions,
            self._schemas,
        )

    def _ask_to_stop(self) -> None:
        with suppress(RuntimeError):  # it has just ended by itself
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)

    async def _run(self) -> Termination:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._lock:
                await self._training.load()
                try:
                    return await self._training.run(self._stop, shows_bar=True)
                finally:
                    await self._training.close()
        except Exception as error:
            termination = classify(error, self._board.progress.step)
            if termination.reason == "InternalError":
                raise
            return termination


def _config(run: RunConfig | Mapping[str, Any] | str | Path, given: Given) -> RunConfig:
    if isinstance(run, RunConfig):
        return run
    if isinstance(run, str | Path):
        document = _document(Path(run))
        return _translated(document, Path(run).parent, given) if _is_foreign(document) else run_config.load(Path(run))
    if _is_foreign(run):
        return _translated(run, Path.cwd(), given)
    inline = dict(run.get("inline", {}))
    inline["dataset"] = _dataset(inline.get("dataset", {}))
    return run_config.parse(msgspec.yaml.encode({"run": _IDENTITY, **run, "inline": inline}), "run")


def _dataset(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, **({} if {"path", "hub"} & set(settings) else {"path": _IN_MEMORY})}


def _document(path: Path) -> Any:
    """None where it cannot be read: the reader of run configs reports that."""
    try:
        return msgspec.yaml.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def _is_foreign(document: Any) -> bool:
    """Another trainer's config: it counts `max_steps` or epochs, and a run config `steps`."""
    training = document.get("training") if isinstance(document, Mapping) else None
    has_steps = isinstance(training, Mapping) and "steps" in training
    return config_file.is_config_file(document) and not has_steps and not {"run", "inline"} & set(document)


def _translated(document: Mapping[str, Any], folder: Path, given: Given) -> RunConfig:
    """Files that it names lie in `folder`; claims, ConfigMaps and Secrets exist only in a cluster."""
    try:
        found = config_file.translate(document, needs_rewards=not given.rewards, needs_data=not given.dataset)
    except config_file.ConfigFileError as error:
        raise ConfigError(str(error)) from error
    for note in found.notes:
        log.info(note)
    spec = {name: value for name, value in found.spec.items() if name != "tracking"}
    inline, wandb = spec.get("inline", {}), found.spec.get("tracking", {}).get("wandb")
    dataset = _dataset(_without(inline.get("dataset", {}), "claimName", "configMapName"))
    if dataset.get("path", _IN_MEMORY) != _IN_MEMORY:
        dataset["path"] = str(folder.resolve() / dataset["path"])
    spec["inline"] = {**inline, "dataset": dataset, "code": {"path": str(folder.resolve())}}
    tracking = {} if wandb is None else {"wandb": _without(wandb, "secretName")}
    try:
        return msgspec.convert({"run": _IDENTITY, **spec, **tracking}, RunConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(found.in_their_words(str(error))) from error


def _without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _task(inline: Inline, dataset: Sequence[Mapping[str, Any]] | None, rewards: Rewards, tools: Any) -> Task:
    rows = (
        records.read(inline.dataset, inline.instructions)
        if dataset is None
        else records.records_from(records.numbered(dataset), inline.dataset, inline.instructions)
    )
    conduct = conduct_of(inline) if tools is None else _conduct(tools, inline)
    return make_task(rows, [*rewards_of(inline), *_rewards(rewards)], conduct)


def _rewards(given: Rewards) -> list[Reward]:
    if isinstance(given, Mapping):
        return [Measure(name, function) for name, function in given.items()]
    return [Measure(_name(each), each) if callable(each) else each for each in given]


def _conduct(tools: Any, inline: Inline) -> Conduct:
    iterations = inline.tools.max_iterations if inline.tools else Tools().max_iterations
    if isclass(tools):
        return Conduct(environment=tools, max_iterations=iterations)
    if iscoroutinefunction(tools):
        return Conduct(rollout=tools)
    return Conduct(tools=tools_from(tools, "tools"), max_iterations=iterations)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _export_settings(formats: Sequence[str], quantization: Quantization) -> Export:
    try:
        return msgspec.convert({"formats": list(formats), "quantization": quantization}, Export)
    except msgspec.ValidationError as error:
        raise TrainerError("InvalidConfig", f"export: {error}") from error
