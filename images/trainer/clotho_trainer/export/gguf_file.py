"""Writes one GGUF file: a tensor at a time, and of each a block of rows at a time."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType
from msgspec import Struct

from clotho_contract.settings import Quantization
from clotho_trainer.export import architectures, vocabulary
from clotho_trainer.export.architectures import Array
from clotho_trainer.export.source import Source
from clotho_trainer.failures import TrainerError

Advance = Callable[[int], None]
"""Called with the bytes of every piece written."""

_FILE_TYPES: Final[dict[Quantization, LlamaFileType]] = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q5_1": LlamaFileType.MOSTLY_Q5_1,
    "q5_0": LlamaFileType.MOSTLY_Q5_0,
    "q4_1": LlamaFileType.MOSTLY_Q4_1,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
_BLOCK_BYTES: Final = 64 * 1024**2
_OUTER: Final = frozenset({"token_embd.weight", "output.weight"})


class _Tensor(Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    blocks: Callable[[], Iterator[Array]]

    @property
    def size(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return int(np.prod(self.shape)) // block * size

    def stored(self) -> Array:
        """As bytes: only these, and one block in full precision, are in memory."""
        stored = np.empty(self.size, np.uint8)
        end = 0
        for block in self.blocks():
            begin, piece = end, gguf.quantize(block, self.kind).view(np.uint8).ravel()
            end += piece.size
            stored[begin:end] = piece
        return stored


class GgufFile:
    def __init__(self, source: Source, quantization: Quantization) -> None:
        self._source = source
        self._quantization: Quantization = quantization
        self._architecture = architectures.of(source.config)
        self._tensors = list(self._plan())
        self._vocabulary = vocabulary.read(
            json.loads(source.tokenizer.backend_tokenizer.to_str()), source.config.vocab_size
        )

    @property
    def total_bytes(self) -> int:
        return sum(tensor.size for tensor in self._tensors)

    def write(self, path: Path, advance: Advance) -> None:
        writer = gguf.GGUFWriter(path, self._architecture.name)
        self._describe(writer)
        for tensor in self._tensors:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.size, tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in self._tensors:
            writer.write_tensor_data(tensor.stored())
            advance(tensor.size)
        writer.close()

    def _plan(self) -> Iterator[_Tensor]:
        config = self._source.config
        names = gguf.get_tensor_name_map(self._architecture.arch, config.num_hidden_layers)
        for name in self._source.names:
            if name.endswith(".inv_freq") or (name == "lm_head.weight" and self._source.is_tied):
                continue
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if found is None:
                raise TrainerError("InvalidConfig", f"GGUF has no place for {name} of {self._source.model.name}")
            shape = self._source.shape(name)
            yield _Tensor(found, shape, tensor_type(found, shape, self._quantization), self._blocks_of(name))
        for name, values in architectures.extra_tensors(config).items():
            yield _Tensor(name, values.shape, GGMLQuantizationType.F32, partial(iter, [values]))

    def _blocks_of(self, name: str) -> Callable[[], Iterator[Array]]:
        source = self._source
        count, *rest = source.shape(name)
        head = architectures.head_size(source.config)
        step = max(1, _BLOCK_BYTES // (4 * int(np.prod(rest))) // head) * head

        def blocks() -> Iterator[Array]:
            for begin in range(0, count, step):
                rows = source.read(name, slice(begin, min(begin + step, count))).float().numpy()
                yield self._architecture.store(name, rows, source.config)

        return blocks

    def _describe(self, writer: gguf.GGUFWriter) -> None:
        writer.add_name(name_for_llama_cpp(Path(self._source.model.name).name, self._vocabulary.swallows_space))
        writer.add_file_type(_FILE_TYPES[self._quantization])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        architectures.describe(writer, self._source.config)
        self._describe_tokenizer(writer)

    def _describe_tokenizer(self, writer: gguf.GGUFWriter) -> None:
        vocabulary, tokenizer = self._vocabulary, self._source.tokenizer
        writer.add_tokenizer_model(vocabulary.model)
        writer.add_tokenizer_pre(vocabulary.pre)
        writer.add_token_list(vocabulary.tokens)
        writer.add_token_types(vocabulary.types)
        if vocabulary.merges:
            writer.add_token_merges(vocabulary.merges)
        if vocabulary.scores:
            writer.add_token_scores(vocabulary.scores)
        if vocabulary.add_space_prefix is not None:
            writer.add_add_space_prefix(vocabulary.add_space_prefix)
        for identifier, add in (
            (tokenizer.bos_token_id, writer.add_bos_token_id),
            (tokenizer.eos_token_id, writer.add_eos_token_id),
            (tokenizer.unk_token_id, writer.add_unk_token_id),
            (tokenizer.pad_token_id, writer.add_pad_token_id),
        ):
            if identifier is not None:
                add(identifier)
        writer.add_add_bos_token(adds_start(tokenizer))
        writer.add_add_eos_token(False)
        if tokenizer.chat_template:
            writer.add_chat_template(tokenizer.chat_template)


def name_for_llama_cpp(name: str, swallows_space: bool) -> str:
    """The file has no field for control tokens that take the space after them: llama.cpp goes by Phi-3's name."""
    is_called_so = re.search("phi-?3", name, re.IGNORECASE) is not None
    if swallows_space == is_called_so:
        return name
    return f"phi-3 {name}" if swallows_space else re.sub("phi-?3", "phi 3", name, flags=re.IGNORECASE)


def adds_start(tokenizer: Any) -> bool:
    """Whether the policy is used to a start token: that of its chats counts, where it has a chat template."""
    start = tokenizer.bos_token_id
    if start is None:
        return False
    if tokenizer.chat_template:
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
        return str(chat).startswith(tokenizer.bos_token)
    return bool(tokenizer("a")["input_ids"][:1] == [start])


def tensor_type(name: str, shape: tuple[int, ...], wanted: Quantization) -> GGMLQuantizationType:
    """Vectors stay exact; embeddings and output do not go below 8 bits; rows that no block fits stay in 16."""
    if len(shape) == 1:
        return GGMLQuantizationType.F32
    kind = GGMLQuantizationType[wanted.upper()]
    if shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        return GGMLQuantizationType.F16
    return GGMLQuantizationType.Q8_0 if wanted[:2] in ("q4", "q5") and name in _OUTER else kind
