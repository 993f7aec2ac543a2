"""Loads the model that is trained, and says in one sentence why when it cannot."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from clotho_contract.settings import Lora, Model
from clotho_trainer.failures import TrainerError, is_out_of_memory
from clotho_trainer.processors import available_processors, thread_count

log = logging.getLogger(__name__)


def load_tokenizer(model: Model) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.name, revision=model.revision, padding_side="left")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(model, "tokenizer", error) from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise TrainerError(
                "ModelUnreadable", f"the tokenizer of {model.name} has neither a padding nor an end-of-text token"
            )
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        log.warning(
            "the tokenizer of %s has no chat template: /v1/chat/completions will refuse requests, the others work",
            model.name,
        )
    return tokenizer


def load_model(model: Model, tokenizer: Any) -> Any:
    """On the GPU when there is one. `nf4` needs CUDA and bitsandbytes."""
    if model.quantization == "nf4":
        require_quantization()
    arguments: dict[str, Any] = {"revision": model.revision, "dtype": _dtype(model)}
    if model.quantization == "nf4":
        compute = torch.bfloat16 if model.dtype == "auto" else getattr(torch, model.dtype)
        arguments["quantization_config"] = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute,
        )
    if torch.cuda.is_available():
        arguments["device_map"] = {"": 0}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model.name, **arguments)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise unreadable(model, "model", error) from error
    check_vocabulary(model.name, tokenizer, loaded.get_input_embeddings().num_embeddings)
    if model.quantization == "nf4":
        from peft import prepare_model_for_kbit_training

        prepare: Any = prepare_model_for_kbit_training
        loaded = prepare(loaded, use_gradient_checkpointing=False)  # switched on later, where the config asks for it
    parameters = sum(parameter.numel() for parameter in loaded.parameters())
    torch.set_num_threads(thread_count(parameters, available_processors()))
    log.info("loaded %s: %.1f million parameters, %s on %s", model.name, parameters / 1e6, loaded.dtype, loaded.device)
    return loaded


def require_quantization() -> None:
    if not torch.cuda.is_available():
        raise TrainerError("InvalidConfig", "model.quantization nf4 needs a CUDA GPU, and this pod sees none")
    try:
        import bitsandbytes  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise TrainerError(
            "InvalidConfig", "model.quantization nf4 needs the package bitsandbytes, which this image does not have"
        ) from error


def check_vocabulary(name: str, tokenizer: Any, embeddings: int) -> None:
    """A tokenizer with more ids than the model has embeddings belongs to another model."""
    if len(tokenizer) > embeddings:
        raise TrainerError(
            "ModelUnreadable",
            f"the tokenizer of {name} has {len(tokenizer)} tokens but the model only {embeddings} embeddings: "
            "they do not belong together",
        )


def adapter_config(lora: Lora) -> Any | None:
    """None when all weights are trained."""
    if lora.rank == 0:
        return None
    from peft import LoraConfig

    modules = lora.target_modules
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type, unused-ignore]
        lora_dropout=lora.dropout,
        target_modules=modules if modules == "all-linear" else [name.strip() for name in modules.split(",")],
        task_type="CAUSAL_LM",
    )


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    declared = model.generation_config.eos_token_id if model.generation_config else None
    ids = [declared] if isinstance(declared, int) else list(declared or ())
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return frozenset(ids)


def context_length(model: Any) -> int:
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1_000_000)


def unreadable(model: Model, what: str, error: BaseException) -> TrainerError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    place = "the folder" if Path(model.name).is_absolute() else "the repository"
    if Path(model.name).is_absolute() and not Path(model.name).exists():
        first = "it does not exist; check model.name and model.claimName"
    return TrainerError("ModelUnreadable", f"cannot read the {what} from {place} {model.name}: {first}")


def _dtype(model: Model) -> Any:
    if model.dtype == "auto":
        return AutoConfig.from_pretrained(model.name, revision=model.revision).dtype or torch.float32
    return getattr(torch, model.dtype)
