"""What an export says while it works (`/progress`), and what it leaves behind (termination message, manifest.json)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from clotho_contract import untrusted
from clotho_contract.progress import Count

ExportState = Literal["reading", "writing", "verifying", "uploading", "registering", "finished"]


class ExportProgress(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    state: ExportState
    artifact: Annotated[str, Meta(max_length=255)] = ""  # what is being made or sent: `safetensors`, `model-q8_0.gguf`
    done_bytes: Count = 0
    total_bytes: Count = 0  # 0 while it is unknown

    @property
    def percent(self) -> int:
        return min(100, 100 * self.done_bytes // self.total_bytes) if self.total_bytes else 0


class ExportedFile(Struct, frozen=True, kw_only=True):
    path: str  # relative to the folder
    bytes: Count
    sha256: str


class ExportOutcome(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    folder: str
    bytes: Count
    files: tuple[ExportedFile, ...] = ()  # empty where they would not fit: manifest.json in the folder has them all
    ollama: str = ""  # the name under which the model was registered


def encode(progress: ExportProgress) -> bytes:
    return msgspec.json.encode(progress)


def decode(body: bytes) -> ExportProgress:
    return untrusted.decode(body, ExportProgress)
