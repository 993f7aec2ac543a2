"""However a model is named, the same one is trained."""

import msgspec
import pytest

from clotho_contract.model_names import normalise_model_name
from clotho_contract.settings import Model


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("litellm/ollama_chat/hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen/Qwen3-0.6B"),
        ("hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen/Qwen3-0.6B"),
        ("ollama/hf.co/Qwen/Qwen3-0.6B-GGUF", "Qwen/Qwen3-0.6B"),
        ("https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("unsloth/gemma-2-2b-it-gguf", "unsloth/gemma-2-2b-it"),
        ("gpt2", "gpt2"),
        ("/models/tiny", "/models/tiny"),
        ("/models/mine-GGUF", "/models/mine-GGUF"),
        ("./tiny", "./tiny"),
    ],
)
def test_spellings_of_a_model_are_normalised(given: str, meant: str) -> None:
    assert normalise_model_name(given) == meant
    assert normalise_model_name(meant) == meant
    assert Model(name=given).name == meant


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("ollama_chat/qwen3:0.6b", "is a name of Ollama's library; give the model's name on the Hugging Face Hub"),
        ("Qwen/Qwen3:latest", "is not a model's name; write it as Qwen/Qwen3-0.6B"),
        ("a/b/c", "is not a model's name"),
        ("hf.co/", "is not a model's name"),
        ("has spaces/in it", "is not a model's name"),
    ],
)
def test_invalid_model_names_are_refused_on_decoding(name: str, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem) as caught:
        msgspec.convert({"model": {"name": name}}, dict[str, Model])
    assert name in str(caught.value)
