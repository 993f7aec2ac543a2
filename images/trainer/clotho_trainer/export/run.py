"""One export from beginning to end: existing files are kept, missing ones written, Ollama comes last."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from clotho_contract.exports import ExportedFile, ExportOutcome, ExportProgress, ExportState
from clotho_contract.settings import Export
from clotho_trainer.export.gguf_file import Advance, GgufFile
from clotho_trainer.export.modelfile import Conversation, conversation, fits_modelfile, modelfile
from clotho_trainer.export.ollama import OllamaServer
from clotho_trainer.export.output import Output
from clotho_trainer.export.safetensors_files import SafetensorsFiles
from clotho_trainer.export.source import Source
from clotho_trainer.failures import TrainerError

log = logging.getLogger(__name__)

Report = Callable[[ExportProgress], None]


class _Artifact(Protocol):
    @property
    def total_bytes(self) -> int: ...

    def write(self, path: Path, advance: Advance) -> None: ...


def export(
    checkpoint: Path, output: Path, settings: Export, *, base: str = "", report: Report = lambda _: None
) -> ExportOutcome:
    """`base` names the model where the checkpoint's own note of it is not to be used."""
    check(settings)
    report(ExportProgress(state="reading"))
    source = Source(checkpoint, base)
    folder = Output(output, source.fingerprint())
    wanted = _artifacts(source, settings)
    missing = {name: artifact for name, artifact in wanted.items() if not folder.holds(name)}
    folder.require_space(sum(artifact.total_bytes for artifact in missing.values()))
    for name, artifact in missing.items():
        _make(folder, name, artifact, report)
    files = [file for name in wanted for file in folder.files_of(name)]
    if "gguf" in settings.formats:
        files += _register(source, folder, settings, report)
    report(ExportProgress(state="finished"))
    return ExportOutcome(
        folder=str(output),
        bytes=sum(file.bytes for file in files),
        files=tuple(files),
        ollama=settings.ollama.name if settings.ollama else "",
    )


def check(settings: Export) -> None:
    if settings.ollama and "gguf" not in settings.formats:
        raise TrainerError("InvalidConfig", "export.ollama needs gguf among export.formats")


def _artifacts(source: Source, settings: Export) -> dict[str, _Artifact]:
    wanted: dict[str, _Artifact] = {}
    if "safetensors" in settings.formats:
        wanted["safetensors"] = SafetensorsFiles(source)
    if "gguf" in settings.formats:
        wanted[_weights_name(settings)] = GgufFile(source, settings.quantization)
    return wanted


def _weights_name(settings: Export) -> str:
    return f"model-{settings.quantization}.gguf"


def _make(folder: Output, name: str, artifact: _Artifact, report: Report) -> None:
    meter = _Meter(report, "writing", name, artifact.total_bytes)

    def fill(path: Path) -> None:
        artifact.write(path, meter.advance)
        report(ExportProgress(state="verifying", artifact=name))

    folder.write(name, fill)
    log.info("wrote %s: %.1f MB", folder.folder / name, artifact.total_bytes / 1e6)


def _register(source: Source, folder: Output, settings: Export, report: Report) -> tuple[ExportedFile, ...]:
    """The Modelfile is written in any case: `ollama create` reads it."""
    talk = _conversation(source)
    (weights,) = folder.files_of(_weights_name(settings))
    written = folder.write("Modelfile", lambda path: _write_text(path, modelfile(weights.path, talk)))
    if settings.ollama is None:
        if not fits_modelfile(talk.system):
            log.warning("the Modelfile cannot hold the system prompt of the training; registration over the API would")
        return written
    meter = _Meter(report, "uploading", weights.path, weights.bytes)
    registering = OllamaServer(settings.ollama).register(folder.folder, weights, talk, meter.advance)
    with ThreadPoolExecutor(1) as thread:  # a notebook has an event loop already
        thread.submit(asyncio.run, registering).result()
    log.info("registered %s with Ollama at %s", settings.ollama.name, settings.ollama.url)
    return written


def _conversation(source: Source) -> Conversation:
    tokenizer = source.tokenizer

    def render(messages: list[dict[str, str]]) -> str:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        return text.removeprefix(tokenizer.bos_token or "")  # Ollama puts it there itself

    return conversation(
        source.config.model_type,
        set(tokenizer.get_vocab()),
        tokenizer.eos_token,
        tokenizer.chat_template,
        render,
        instructions=source.instructions,
    )


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


class _Meter:
    def __init__(self, report: Report, state: ExportState, artifact: str, total: int) -> None:
        self._report, self._state, self._artifact, self._total = report, state, artifact, total
        self._done = 0
        self.advance(0)

    def advance(self, size: int) -> None:
        self._done += size
        self._report(
            ExportProgress(state=self._state, artifact=self._artifact, done_bytes=self._done, total_bytes=self._total)
        )
