"""Writes the merged model as Transformers and vLLM read it: shards, config and tokenizer."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from clotho_trainer.export.gguf_file import Advance
from clotho_trainer.export.source import Source

_SHARD_BYTES = 2 * 1024**3  # also what is in memory at once


class SafetensorsFiles:
    def __init__(self, source: Source) -> None:
        self._source = source
        names = [name for name in source.names if not (name == "lm_head.weight" and source.is_tied)]
        self._sizes = {name: int(np.prod(source.shape(name))) * source.item_size(name) for name in names}

    @property
    def total_bytes(self) -> int:
        return sum(self._sizes.values())

    def write(self, folder: Path, advance: Advance) -> None:
        folder.mkdir()
        shards = list(self._shards())
        places: dict[str, str] = {}
        for number, names in enumerate(shards, start=1):
            single = len(shards) == 1
            file = "model.safetensors" if single else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            tensors = {name: self._source.read_as_stored(name).contiguous() for name in names}
            save_file(tensors, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(names, file)
            advance(sum(self._sizes[name] for name in names))
        if len(shards) > 1:
            index = {"metadata": {"total_size": self.total_bytes}, "weight_map": places}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        for name in ("config.json", "generation_config.json"):
            if (self._source.folder / name).exists():
                shutil.copyfile(self._source.folder / name, folder / name)
        self._source.tokenizer.save_pretrained(folder)

    def _shards(self) -> Iterator[list[str]]:
        shard: list[str] = []
        filled = 0
        for name, size in self._sizes.items():
            if shard and filled + size > _SHARD_BYTES:
                yield shard
                shard, filled = [], 0
            shard.append(name)
            filled += size
        if shard:
            yield shard
