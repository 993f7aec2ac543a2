"""The tiny model's files, written without transformers, are what transformers reads and would have written."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from clotho_trainer.model import tiny
from integration.loop.processes import SOURCES

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def test_every_weight_is_read_and_none_is_missing(model: Path) -> None:
    _, report = AutoModelForCausalLM.from_pretrained(model, output_loading_info=True)
    assert {name: found for name, found in report.items() if found} == {}


def test_weights_are_as_transformers_initialises_them(model: Path) -> None:
    written = AutoModelForCausalLM.from_pretrained(model)
    expected = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    theirs = dict(expected.named_parameters())
    for name, weight in written.named_parameters():
        assert weight.shape == theirs[name].shape
        assert abs(weight.mean() - theirs[name].mean()) < 0.05, name
        assert abs(weight.std() - theirs[name].std()) < 0.05, name
    assert written.get_input_embeddings().weight[0].abs().max() == 0, "padding has no embedding"


def test_seeds_give_different_models(model: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        tiny.write(tmp_path / str(seed), seed)
    same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "01")
    assert same == (model / "model.safetensors").read_bytes() != other


def test_tokenizer_on_disk_is_the_one_in_memory(model: Path) -> None:
    read: Any = AutoTokenizer.from_pretrained(model)
    made: Any = tiny.make_tokenizer()
    assert read.get_vocab() == made.get_vocab()
    assert read.special_tokens_map == made.special_tokens_map
    assert read.padding_side == made.padding_side
    assert read("A>b\n~").input_ids == made("A>b\n~").input_ids
    assert read.decode(read("a> b").input_ids) == "a> b"
    assert read.apply_chat_template(CHAT, tokenize=False) == made.apply_chat_template(CHAT, tokenize=False)


def test_command_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    """Every start of a pod that makes its model would wait for them."""
    check = (
        "import sys, clotho_trainer.__main__ as program;"
        f"program.main(['tiny-model', {str(tmp_path / 'tiny')!r}]);"
        "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    done = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
