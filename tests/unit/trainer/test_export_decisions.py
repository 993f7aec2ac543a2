"""What an export decides without touching a file: types of tensors, order of rows, stops, templates, last words."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from clotho_contract import termination
from clotho_contract.exports import ExportedFile, ExportOutcome, ExportProgress
from clotho_contract.settings import Export, Ollama, Quantization
from clotho_contract.termination import Termination
from clotho_trainer.export import architectures
from clotho_trainer.export.gguf_file import adds_start, name_for_llama_cpp, tensor_type
from clotho_trainer.export.modelfile import Conversation, conversation, modelfile
from clotho_trainer.export.run import check
from clotho_trainer.failures import TrainerError


@pytest.mark.parametrize(
    ("name", "shape", "wanted", "kind"),
    [
        ("blk.0.attn_norm.weight", (64,), "q8_0", "F32"),
        ("blk.0.attn_q.bias", (64,), "f16", "F32"),
        ("blk.0.attn_q.weight", (64, 64), "q8_0", "Q8_0"),
        ("blk.0.attn_q.weight", (64, 64), "bf16", "BF16"),
        ("blk.0.attn_q.weight", (64, 72), "q8_0", "F16"),
        ("blk.0.attn_q.weight", (64, 64), "q4_0", "Q4_0"),
        ("token_embd.weight", (100, 64), "q4_0", "Q8_0"),
        ("output.weight", (100, 64), "q5_1", "Q8_0"),
        ("output.weight", (100, 64), "f16", "F16"),
    ],
)
def test_tensor_type_depends_on_name_shape_and_quantization(
    name: str, shape: tuple[int, ...], wanted: Quantization, kind: str
) -> None:
    assert tensor_type(name, shape, wanted) is GGMLQuantizationType[kind]


class Tokenizer:
    """Adds a start token to plain text; its chats begin as `template` says."""

    bos_token_id: int | None = 1
    bos_token = "<s>"

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def __call__(self, _: str) -> dict[str, list[int]]:
        return {"input_ids": [1, 5]}

    def apply_chat_template(self, _: list[dict[str, str]], *, tokenize: bool) -> str | None:
        return self.chat_template


@pytest.mark.parametrize(("template", "adds"), [(None, True), ("<s>[INST] a", True), ("<|user|>a", False)])
def test_start_token_is_that_of_the_chats_of_training(template: str | None, adds: bool) -> None:
    assert adds_start(Tokenizer(template)) is adds


@pytest.mark.parametrize(
    ("name", "swallows_space", "written"),
    [
        ("Phi-3-mini-4k-instruct", True, "Phi-3-mini-4k-instruct"),
        ("my-base", True, "phi-3 my-base"),
        ("my-base", False, "my-base"),
        ("distilled-from-Phi3", False, "distilled-from-phi 3"),
    ],
)
def test_llama_cpp_takes_for_phi_3_what_is_tokenized_so(name: str, swallows_space: bool, written: str) -> None:
    assert name_for_llama_cpp(name, swallows_space) == written


def test_rotary_halves_are_interleaved() -> None:
    rows = np.arange(8).reshape(8, 1)  # two heads, each with a first and a second half of two
    assert architectures.interleave(rows, 4).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_rope_scaling_affects_low_frequencies_only() -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = SimpleNamespace(rope_parameters=rope, head_dim=128)
    factors = architectures.extra_tensors(config)["rope_freqs.weight"]
    assert factors.shape == (64,)
    assert (factors[0], factors[-1]) == (1.0, 8.0)
    assert np.all(np.diff(factors) >= 0)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "mamba"}, "GGUF cannot be written for mamba models, only for gemma, gemma2, llama"),
        ({"model_type": "gemma", "tie_word_embeddings": False}, "with tied embeddings only"),
    ],
)
def test_models_that_llama_cpp_cannot_run(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(TrainerError, match=problem):
        architectures.of(SimpleNamespace(**config))


def render(messages: list[dict[str, str]]) -> str:
    return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<assistant>"


@pytest.mark.parametrize(
    ("model_type", "vocabulary", "stops"),
    [
        ("qwen3", {"<|im_start|>", "<|im_end|>"}, ("<|im_start|>", "<|im_end|>")),
        ("llama", {"<|eot_id|>"}, ("<|eot_id|>",)),
        ("llama", {"</s>"}, ("<end>",)),  # an older Llama, without turns
        ("mistral", {"</s>"}, ("</s>",)),
        ("gemma2", {"<end_of_turn>"}, ("<end_of_turn>",)),
        ("phi", {"<|end|>"}, ("<|end|>",)),
        ("phi3", {"<|end|>"}, ("<|end|>",)),
        ("unheard-of", set(), ("<end>",)),
    ],
)
def test_stop_strings_follow_the_model_type(model_type: str, vocabulary: set[str], stops: tuple[str, ...]) -> None:
    assert conversation(model_type, vocabulary, "<end>", None, render).stops == stops


def test_without_a_template_prompts_are_passed_on() -> None:
    assert conversation("llama", set(), None, None, render) == Conversation(template="{{ .Prompt }}", stops=())


def test_the_system_prompt_of_training_is_kept() -> None:
    made = conversation("llama", set(), "<end>", "a template", render, instructions="Be brief.")
    text = modelfile("model-q8_0.gguf", made)
    assert text.startswith('FROM ./model-q8_0.gguf\nTEMPLATE """')
    assert 'SYSTEM """Be brief."""\nPARAMETER stop """<end>"""\n' in text


@pytest.mark.parametrize(
    ("system", "is_carried"),
    [
        ('Say "yes" or "no".\n\tNothing else: """quoted""" or not.', True),
        ('Answer in a docstring:\n"""\nlike this\n"""', False),
        ('Ends in quotation marks: """', True),
        ('A trailing line\n"""\n', False),
        ("全角\u3000の空白", False),
        ("family: \U0001f468\u200d\U0001f469", False),
    ],
)
def test_a_system_prompt_that_a_modelfile_would_change_is_left_out_of_it(system: str, is_carried: bool) -> None:
    text = modelfile("model-q8_0.gguf", Conversation(template="{{ .Prompt }}", stops=("</s>",), system=system))
    assert (f'SYSTEM """{system}"""' in text) == is_carried
    assert ("# SYSTEM is left out" in text) != is_carried


def test_invisible_characters_of_a_template_are_escaped() -> None:
    made = conversation("llama", set(), None, "a template", lambda messages: "\u00a0\U000e0001\n" + render(messages))
    assert r"\U000000a0\U000e0001\n" in made.template
    assert "# TEMPLATE" not in modelfile("model-q8_0.gguf", made)


def test_a_template_that_leaves_out_messages_is_refused() -> None:
    with pytest.raises(TrainerError, match="chat template"):
        conversation("llama", set(), "<end>", "a template", lambda messages: messages[0]["content"])


def test_ollama_gets_gguf() -> None:
    with pytest.raises(TrainerError, match=r"export\.ollama needs gguf"):
        check(Export(formats=("safetensors",), ollama=Ollama(url="http://ollama:11434", name="mine")))


def test_termination_message_fits_with_many_files() -> None:
    files = tuple(
        ExportedFile(path=f"model-{n:05d}-of-00100.safetensors", bytes=n, sha256="0" * 64) for n in range(100)
    )
    outcome = ExportOutcome(folder="/var/lib/clotho/export", bytes=1, files=files)
    body = termination.encode(Termination(reason="Finished", message="wrote it", export=outcome))
    assert len(body) <= termination.LIMIT
    decoded = termination.decode(body.decode())
    assert decoded is not None
    assert decoded.export == ExportOutcome(folder="/var/lib/clotho/export", bytes=1)


@pytest.mark.parametrize(("done", "total", "percent"), [(0, 0, 0), (1, 3, 33), (3, 3, 100)])
def test_export_progress_in_percent(done: int, total: int, percent: int) -> None:
    assert ExportProgress(state="writing", done_bytes=done, total_bytes=total).percent == percent
