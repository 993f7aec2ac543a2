"""Loads the model that is trained; a failure is one sentence."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

from clotho_contract.settings import Lora, Model
from clotho_trainer.failures import TrainerError, is_out_of_memory
from clotho_trainer.hardware.processors import available_processors, thread_count
from clotho_trainer.model.fp8 import incapable_gpu
from clotho_trainer.model.tokenizer import check_vocabulary, unreadable

log = logging.getLogger(__name__)


# While Transformers loads, its classes are patched, and Accelerate's state belongs to the process: a second thread
# that makes a model meanwhile breaks both: weights that should be tied are not.
one_model_at_a_time = threading.RLock()

Where = Literal["device", "host", "nowhere"]


def load_model(model: Model, tokenizer: Any, where: Where = "device") -> Any:
    """On the GPU when there is one; in the host's memory; or the shapes alone, without weights."""
    if model.quantization != "none":
        require_quantization(model.quantization)
    arguments: dict[str, Any] = {
        "revision": model.revision,
        "dtype": "auto" if model.dtype == "auto" else getattr(torch, model.dtype),
    }
    if model.quantization == "nf4":
        compute = torch.bfloat16 if model.dtype == "auto" else getattr(torch, model.dtype)
        arguments["quantization_config"] = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute,
        )
    if torch.cuda.is_available() and where == "device":
        arguments["device_map"] = {"": 0}
    try:
        with one_model_at_a_time:
            loaded: Any = (
                _shapes(model) if where == "nowhere" else AutoModelForCausalLM.from_pretrained(model.name, **arguments)
            )
    except Exception as error:  # readers of damaged files raise anything
        if is_out_of_memory(error):
            raise
        raise unreadable(model, "model", error) from error
    check_vocabulary(model.name, tokenizer, loaded.get_input_embeddings().num_embeddings)
    parameters = sum(parameter.numel() for parameter in loaded.parameters())
    torch.set_num_threads(thread_count(parameters, available_processors()))
    log.info("loaded %s: %.1f million parameters, %s on %s", model.name, parameters / 1e6, loaded.dtype, loaded.device)
    return loaded


def load_shapes(model: Model) -> Any:
    """The model's modules without their weights."""
    try:
        return _shapes(model)
    except Exception as error:  # readers of damaged files raise anything
        raise unreadable(model, "model", error) from error


def _shapes(model: Model) -> Any:
    config = AutoConfig.from_pretrained(model.name, revision=model.revision)
    dtype = config.dtype if model.dtype == "auto" else getattr(torch, model.dtype)
    with one_model_at_a_time, torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]


def require_quantization(kind: str) -> None:
    """Before minutes of loading."""
    if not torch.cuda.is_available():
        raise TrainerError("InvalidConfig", f"model.quantization {kind} needs a CUDA GPU, and this pod sees none")
    if kind == "fp8" and (name := incapable_gpu()):
        raise TrainerError("InvalidConfig", f"model.quantization fp8 needs a GPU of Hopper or newer; this is a {name}")
    if kind == "nf4" and find_spec("bitsandbytes") is None:
        raise TrainerError(
            "InvalidConfig", "model.quantization nf4 needs the package bitsandbytes, which this image does not have"
        )


def adapter_config(lora: Lora, model: Any) -> Any | None:
    """None when all weights are trained."""
    if lora.rank == 0:
        return None
    from peft import LoraConfig

    modules = lora.target_modules
    return LoraConfig(
        exclude_modules=_linear_outside_decoder(model) or None,
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type, unused-ignore]
        lora_dropout=lora.dropout,
        target_modules=modules if modules == "all-linear" else [name.strip() for name in modules.split(",")],
        task_type="CAUSAL_LM",
    )


def _linear_outside_decoder(model: Any) -> list[str]:
    """What reads images or sound: only text is trained. The head is no target anyway."""
    inside, head = set(model.get_decoder().modules()), model.get_output_embeddings()
    return [name for name, each in _linear_layers(model) if each not in inside and each is not head]


def _linear_layers(model: Any) -> Iterator[tuple[str, torch.nn.Linear]]:
    return ((name, each) for name, each in model.named_modules() if isinstance(each, torch.nn.Linear))


@contextmanager
def adapting(lora: Lora, model: Any) -> Iterator[None]:
    """What PEFT refuses is a mistake in the config: another attempt would end in the same way."""
    names = sorted({name.rpartition(".")[2] for name, _ in _linear_layers(model.get_decoder())})
    try:
        yield
    except ValueError as error:
        if lora.rank == 0:
            raise
        reason = str(error).splitlines()[0]
        raise TrainerError(
            "InvalidConfig",
            f"training.lora.targetModules {lora.target_modules}: {reason} "
            f"The linear layers of this model are {', '.join(names)}",
        ) from error


def sharpen_adapters(model: Any) -> None:
    """In single precision, whatever the base has: the small updates of an adapter are lost in half of it."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    declared = model.generation_config.eos_token_id if model.generation_config else None
    ids = [declared] if isinstance(declared, int) else list(declared or ())
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return frozenset(ids)


def context_length(model: Any) -> int:
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1_000_000)
