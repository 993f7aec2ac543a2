"""Registers a GGUF file with an Ollama server: the blob by its digest, then the model."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from clotho_contract.exports import ExportedFile
from clotho_contract.retry import reason_of
from clotho_contract.settings import Ollama
from clotho_trainer.export.modelfile import Conversation
from clotho_trainer.failures import TrainerError

_CHUNK = 4 * 1024**2
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=1800)  # the server hashes what it was sent
_ATTEMPTS, _PAUSE = 5, 2.0

Advance = Callable[[int], None]


class OllamaServer:
    def __init__(self, settings: Ollama) -> None:
        self._url = settings.url.rstrip("/")
        self._name = settings.name

    async def register(self, folder: Path, file: ExportedFile, talk: Conversation, advance: Advance) -> None:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            await self._retried(lambda: self._upload(session, folder, file, advance))
            await self._retried(lambda: self._create(session, file, talk))

    async def _upload(self, session: aiohttp.ClientSession, folder: Path, file: ExportedFile, advance: Advance) -> None:
        blob = f"{self._url}/api/blobs/sha256:{file.sha256}"
        async with session.head(blob) as answer:
            if answer.status == 200:  # sent before, by this export or another
                return
            if answer.status != 404:
                raise await self._refusal(answer, "asked for the blob")
        headers = {"Content-Length": str(file.bytes), "Content-Type": "application/octet-stream"}
        async with session.post(blob, data=_read(folder / file.path, advance), headers=headers) as answer:
            if answer.status not in (200, 201):
                raise await self._refusal(answer, f"sent {file.path}")

    async def _create(self, session: aiohttp.ClientSession, file: ExportedFile, talk: Conversation) -> None:
        body: dict[str, Any] = {
            "model": self._name,
            "files": {Path(file.path).name: f"sha256:{file.sha256}"},
            "template": talk.template,
            "parameters": {"stop": list(talk.stops)},
        }
        if talk.system:
            body["system"] = talk.system
        async with session.post(f"{self._url}/api/create", json=body) as answer:
            if answer.status != 200:
                raise await self._refusal(answer, f"asked to create {self._name}")
            status = ""
            async for line in answer.content:
                status = self._read_line(line) or status
        if status != "success":
            raise TrainerError(
                "DependencyUnavailable", f"Ollama at {self._url} ended in the middle of creating {self._name}: {status}"
            )

    def _read_line(self, line: bytes) -> str:
        if not line.strip():
            return ""
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise TrainerError("InvalidConfig", f"{self._url} does not answer as Ollama does") from error
        if "error" in answer:
            raise TrainerError("InvalidConfig", f"Ollama at {self._url} refused {self._name}: {answer['error']}")
        return str(answer.get("status", ""))

    async def _refusal(self, answer: aiohttp.ClientResponse, action: str) -> TrainerError:
        text = (await answer.text())[:500].strip()
        try:
            text = json.loads(text)["error"]
        except (ValueError, KeyError, TypeError):
            text = text or answer.reason or ""
        is_passing = answer.status >= 500 or answer.status == 429
        return TrainerError(
            "DependencyUnavailable" if is_passing else "InvalidConfig",
            f"Ollama at {self._url} answered {answer.status} when {action}: {text}",
        )

    async def _retried(self, attempt: Callable[[], Any]) -> None:
        """A server that is restarting or briefly out of reach gets another chance; a refusal is final."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                await attempt()
                return
            except TrainerError as error:
                if error.reason != "DependencyUnavailable" or not left:
                    raise
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if not left:
                    problem = f"Ollama at {self._url}: {reason_of(error)}"
                    raise TrainerError("DependencyUnavailable", problem) from error
            await asyncio.sleep(_PAUSE)


async def _read(path: Path, advance: Advance) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
            advance(len(chunk))
