"""The trained weights, merged tensor by tensor: neither the model nor the base is ever in memory as a whole."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct, field
from safetensors import safe_open

from clotho_contract.settings import Model
from clotho_trainer.failures import TrainerError
from clotho_trainer.model.tokenizer import load_tokenizer, unreadable
from clotho_trainer.training import checkpoints

_ADAPTER = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")
_ALL = slice(None)
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_BASE_FILES = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json"]


class _AdapterConfig(Struct, frozen=True):
    """What of PEFT's adapter_config.json decides how an adapter is merged."""

    base_model_name_or_path: str | None = None
    peft_type: str = "LORA"
    lora_alpha: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False
    bias: str = "none"
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    modules_to_save: list[str] | None = None


class _BaseModel(Struct, frozen=True):
    name: str
    revision: str = "main"


class _Inline(Struct, frozen=True):
    instructions: str = ""


class _RunConfig(Struct, frozen=True):
    model: _BaseModel
    inline: _Inline | None = None


class _TrainingConfig(Struct, frozen=True):
    """Of the training_config.json in a checkpoint, only what matters here: other versions may differ elsewhere."""

    config: _RunConfig


class Source:
    """`names` in the order of the base's files; `read` merges the adapter of a tensor where it has one."""

    def __init__(self, checkpoint: Path, base: str = "") -> None:
        self.checkpoint = checkpoint
        self.step = _verified_step(checkpoint)
        self._adapter = _Adapter(checkpoint) if (checkpoint / "adapter_config.json").exists() else None
        trained = _training_config(checkpoint)
        self.instructions = trained.inline.instructions if trained and trained.inline else ""
        self.model = _base_of(checkpoint, self._adapter, trained, base)
        self.folder = _fetch(self.model) if self._adapter else checkpoint
        self._files = _tensor_files(self.folder)
        self.config = _load_config(self.model, self.folder)
        self.tokenizer = load_tokenizer(msgspec.structs.replace(self.model, name=str(checkpoint)))
        if self._adapter:
            self._adapter.check_targets(self._files)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._files)

    @property
    def is_tied(self) -> bool:
        return bool(self.config.tie_word_embeddings)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def item_size(self, name: str) -> int:
        return 2 if self._files[name].get_slice(name).get_dtype() in ("F16", "BF16") else 4

    def read(self, name: str, rows: slice = _ALL) -> torch.Tensor:
        """In float32 where an adapter was added, else as it is stored."""
        stored = self._files[name].get_slice(name)
        if stored.get_dtype() not in _FLOATS:
            raise TrainerError(
                "ModelUnreadable", f"{name} of {self.model.name} is stored as {stored.get_dtype()}, not as plain floats"
            )
        weight: torch.Tensor = stored[rows]
        delta = self._adapter.delta(name, rows) if self._adapter else None
        merged = weight if delta is None else weight.float() + delta
        if not torch.isfinite(merged).all():
            raise TrainerError("NonFiniteLoss", f"{name} holds values that are not finite: this policy is broken")
        return merged

    def read_as_stored(self, name: str) -> torch.Tensor:
        """In the base's own precision."""
        dtype = {"F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}.get(
            self._files[name].get_slice(name).get_dtype(), torch.float32
        )
        return self.read(name).to(dtype)

    def fingerprint(self) -> str:
        """Of everything that decides what is written: the checkpoint's bytes and the base it belongs to."""
        digest = hashlib.sha256(f"{self.model.name}@{self.model.revision}".encode())
        manifest = self.checkpoint / "manifest.json"  # has the digests of all others, and was verified
        for path in [manifest] if manifest.exists() else sorted(self.checkpoint.iterdir()):
            if path.suffix in (".safetensors", ".json", ".jinja") and path.is_file():
                with path.open("rb") as file:
                    digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


class _Adapter:
    def __init__(self, folder: Path) -> None:
        try:
            self.config = msgspec.json.decode((folder / "adapter_config.json").read_bytes(), type=_AdapterConfig)
        except (OSError, msgspec.MsgspecError) as error:
            raise TrainerError("ModelUnreadable", f"cannot read the adapter in {folder}: {error}") from error
        self._file = _open(folder / "adapter_model.safetensors")
        if problem := next(_obstacles(self.config), None):
            raise TrainerError("InvalidConfig", f"the adapter in {folder} cannot be merged: {problem}")
        self._modules = {self._module(key) for key in self._file.keys()}  # noqa: SIM118 - not a dictionary

    def check_targets(self, base: dict[str, Any]) -> None:
        missing = sorted(module for module in self._modules if f"{module}.weight" not in base)
        if missing:
            raise TrainerError("ModelUnreadable", f"the adapter changes {missing[0]}, which its base does not have")

    def delta(self, name: str, rows: slice) -> torch.Tensor | None:
        module = name.removesuffix(".weight")
        if module not in self._modules:
            return None
        down, up = (self._file.get_tensor(f"base_model.model.{module}.lora_{side}.weight").float() for side in "AB")
        rank = down.shape[0]
        scale = self.config.lora_alpha / (math.sqrt(rank) if self.config.use_rslora else rank)
        product: torch.Tensor = scale * (up[rows] @ down)
        return product

    def _module(self, key: str) -> str:
        found = _ADAPTER.match(key)
        if found is None:
            raise TrainerError("InvalidConfig", f"the adapter holds {key}, which cannot be merged into a weight")
        return found["module"]


def _obstacles(config: _AdapterConfig) -> Iterator[str]:
    if config.peft_type != "LORA":
        yield f"it is of type {config.peft_type}, not LORA"
    if config.use_dora or config.fan_in_fan_out or config.alpha_pattern:
        yield "it uses DoRA, transposed weights or a scale per module"
    if config.bias != "none" or config.modules_to_save:
        yield "it trains biases or whole modules beside the low-rank matrices"


def _verified_step(checkpoint: Path) -> int | None:
    """None for a folder that our trainer did not write."""
    if not checkpoint.is_dir():
        raise TrainerError("InvalidConfig", f"there is no checkpoint {checkpoint}")
    manifest = checkpoint / "manifest.json"
    if not manifest.exists():
        return None
    step = int(json.loads(manifest.read_bytes()).get("step", 0))
    if problem := checkpoints.damage(checkpoint, step):
        raise TrainerError("ModelUnreadable", f"the checkpoint {checkpoint} is damaged: {problem}")
    return step


def _training_config(checkpoint: Path) -> _RunConfig | None:
    path = checkpoint / "training_config.json"
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=_TrainingConfig).config
    except msgspec.MsgspecError as error:
        raise TrainerError("ModelUnreadable", f"{path} is not what the trainer writes: {error}") from error


def _base_of(checkpoint: Path, adapter: _Adapter | None, trained: _RunConfig | None, given: str) -> Model:
    if given:
        return Model(name=given)
    if trained is not None:
        return Model(name=trained.model.name, revision=trained.model.revision)
    name = adapter.config.base_model_name_or_path if adapter else str(checkpoint)
    if not name:
        raise TrainerError("InvalidConfig", f"{checkpoint} does not say which model it was trained from; name it")
    return Model(name=name)


def _fetch(model: Model) -> Path:
    if Path(model.name).is_dir():
        return Path(model.name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model.name, revision=model.revision, allow_patterns=_BASE_FILES))
    except Exception as error:  # networks and hubs fail in many ways
        raise unreadable(model, "model", error) from error


def _tensor_files(folder: Path) -> dict[str, Any]:
    opened: dict[str, Any] = {}
    files = [path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith("adapter_")]
    if not files:
        raise TrainerError("ModelUnreadable", f"{folder} holds no safetensors files")
    for path in files:
        handle = _open(path)
        opened |= dict.fromkeys(handle.keys(), handle)
    return opened


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except Exception as error:  # safetensors has an error type of its own
        raise TrainerError("ModelUnreadable", f"cannot read {path}: {error}") from error


def _load_config(model: Model, folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder)
    except Exception as error:  # readers of damaged files may raise anything
        raise unreadable(model, "config", error) from error
