"""Files that were written are read again by other programs, and the policy is still the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clotho_contract.settings import Export
from clotho_trainer.export import gguf_file
from clotho_trainer.export.run import export
from clotho_trainer.model import tiny
from integration.trainer.export import llama_cpp, tiny_models

KINDS = list(tiny_models.TOKENIZERS)
# The largest difference of a logit, as a share of the largest. Random weights are harder on few bits than trained.
TOLERANCES = {
    "f32": 1e-5,
    "f16": 0.003,
    "bf16": 0.03,
    "q8_0": 0.08,
    "q5_1": 0.4,
    "q5_0": 0.4,
    "q4_1": 0.6,
    "q4_0": 0.7,
}
ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "yarn": (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "linear": ("mistral", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}}),
    "longrope": (
        "phi3",
        {
            "max_position_embeddings": 1024,
            "original_max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "original_max_position_embeddings": 512,
                "short_factor": [1.0 + index / 10 for index in range(8)],
                "long_factor": [2.0 + index / 5 for index in range(8)],
            },
        },
    ),
}


def logits(model: Any, prompts: list[list[int]]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0, -1].float() for prompt in prompts]


def load(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("policies")
    return {kind: tiny_models.write(kind, folder / f"tiny-{kind}") for kind in KINDS}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("gemma", "phi")])  # it cannot read these two
def test_transformers_reads_the_same_policy(kind: str, policies: dict[str, Path], tmp_path: Path) -> None:
    original = load(policies[kind])
    tokenizer = AutoTokenizer.from_pretrained(policies[kind])
    prompts = [tokenizer(text)["input_ids"] for text in tiny_models.SAMPLES]
    expected = logits(original, prompts)
    quantizations = TOLERANCES if kind in ("qwen3", "llama") else ("f16", "q8_0")
    for quantization in quantizations:
        export(policies[kind], tmp_path, Export(quantization=quantization))  # type: ignore[arg-type]
        config = {} if kind == "mistral" else {"config": original.config}  # a Mistral is a Llama in GGUF
        again = load(tmp_path, gguf_file=f"model-{quantization}.gguf", **config)
        for ours, theirs in zip(expected, logits(again, prompts), strict=True):
            difference = float((ours - theirs).abs().max() / ours.abs().max())
            assert difference <= TOLERANCES[quantization], (kind, quantization)


def test_merged_safetensors_are_a_model_of_their_own(policies: dict[str, Path], tmp_path: Path) -> None:
    export(policies["qwen3"], tmp_path, Export(formats=("safetensors",)))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "safetensors")
    prompts = [tokenizer(text)["input_ids"] for text in tiny_models.SAMPLES]
    for ours, theirs in zip(
        logits(load(policies["qwen3"]), prompts), logits(load(tmp_path / "safetensors"), prompts), strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_the_size_of_the_blocks_changes_nothing(
    kind: str, policies: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(policies[kind], tmp_path / "whole", Export())
    monkeypatch.setattr(gguf_file, "_BLOCK_BYTES", 1)
    export(policies[kind], tmp_path / "in blocks", Export())
    whole, in_blocks = ((tmp_path / name / "model-q8_0.gguf").read_bytes() for name in ("whole", "in blocks"))
    assert whole == in_blocks


@pytest.fixture(scope="module")
def llama() -> Path:
    try:
        return llama_cpp.interpreter()
    except llama_cpp.UnavailableError as error:
        pytest.skip(str(error))


def check_with_llama_cpp(llama: Path, policy: Path, work: Path, texts: list[str]) -> None:
    """Exact in float32, close in 8 bits; and the same tokens for the same text."""
    model, tokenizer = load(policy), AutoTokenizer.from_pretrained(policy)
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    expected = [each.log_softmax(-1) for each in logits(model, prompts)]
    jobs = []
    for quantization in ("f32", "q8_0"):
        export(policy, work, Export(quantization=quantization))  # type: ignore[arg-type]
        jobs.append(
            {
                "model": str(work / f"model-{quantization}.gguf"),
                "texts": texts,
                "prompts": prompts,
                "size": model.config.vocab_size,
                "plain": tokenizer.convert_tokens_to_ids("e"),
            }
        )
    for answer, tolerance in zip(llama_cpp.ask(llama, jobs), (0.005, 0.5), strict=True):
        assert answer["tokens"] == prompts
        for ours, theirs in zip(expected, answer["logprobs"], strict=True):
            assert len(theirs) == len(ours)
            assert max(abs(float(ours[int(token)]) - value) for token, value in theirs.items()) <= tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_reads_the_same_policy(kind: str, llama: Path, policies: dict[str, Path], tmp_path: Path) -> None:
    check_with_llama_cpp(llama, policies[kind], tmp_path, tiny_models.SAMPLES)


@pytest.mark.parametrize(("kind", "name"), [("phi3", "policy"), ("phi3", "Phi-3-mini"), ("mistral", "not-phi3")])
def test_space_after_control_tokens_is_read_whatever_the_model_is_called(
    kind: str, name: str, llama: Path, tmp_path: Path
) -> None:
    policy = tiny_models.write(kind, tmp_path / name)
    turns = ["<|user|>\n the fox<|end|>\n<|assistant|>\n", "<s> the fox</s>\n the dog"]
    check_with_llama_cpp(llama, policy, tmp_path / "out", turns)


@pytest.mark.parametrize("rope", ROPES)
def test_llama_cpp_applies_the_same_rope_scaling(rope: str, llama: Path, tmp_path: Path) -> None:
    kind, changes = ROPES[rope]
    policy = tiny_models.write(kind, tmp_path / f"tiny-{kind}", **changes)
    check_with_llama_cpp(llama, policy, tmp_path / "out", [" ".join(tiny_models.SAMPLES), tiny_models.SAMPLES[0]])


def test_llama_cpp_reads_the_tiny_model_of_the_examples(llama: Path, tmp_path: Path) -> None:
    tiny.write(tmp_path / "tiny")
    texts = ["a letter: b", "1 + 1 = 2\n<|user|>go on<|assistant|>yes<eos>"]
    check_with_llama_cpp(llama, tmp_path / "tiny", tmp_path / "out", texts)
