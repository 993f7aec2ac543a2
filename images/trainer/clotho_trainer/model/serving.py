"""The policy for inference alone: nothing is prepared for training, and the parameters come from a trainer."""

from collections.abc import Iterator
from typing import Any

from clotho_contract.settings import Lora, Model
from clotho_trainer.failures import TrainerError
from clotho_trainer.model.architecture import compute_quantized
from clotho_trainer.model.load import adapter_config, load_model, load_shapes, sharpen_adapters
from clotho_trainer.model.trained import trained_names


def load_policy(model: Model, lora: Lora, tokenizer: Any) -> tuple[Any, frozenset[str]]:
    """The model with new adapters, and the names of the parameters that the trainer trains."""
    policy = _with_adapters(load_model(model, tokenizer), lora)
    compute_quantized(policy, model.quantization)
    return _frozen(policy)


def load_adapters(model: Model, lora: Lora) -> tuple[Any, frozenset[str]]:
    """The same without the weights of the base, for an engine that loads its own."""
    policy = _with_adapters(load_shapes(model), lora)
    for module in policy.modules():
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            module.to_empty(device="cpu", recurse=False)
    return _frozen(policy)


def load_names(model: Model) -> tuple[Any, frozenset[str]]:
    """The same without any weights, where all of them are trained: they come as a whole (`LiveWeights.whole`)."""
    policy = load_shapes(model)
    if untrained := sorted(_saved_buffers(policy)):
        # An engine that reloads a layer without them would compute with memory that nothing has written.
        raise TrainerError(
            "InvalidConfig",
            f"{model.name} has weights that are not trained ({untrained[0]}): vLLM serves its adapters only; "
            "set training.lora.rank above 0, or inference.engine transformers",
        )
    return _frozen(policy)


def _saved_buffers(policy: Any) -> Iterator[str]:
    for prefix, module in policy.named_modules():
        for name in module._buffers.keys() - module._non_persistent_buffers_set:
            yield f"{prefix}.{name}"


def _with_adapters(base: Any, lora: Lora) -> Any:
    adapter = adapter_config(lora, base)
    if adapter is None:
        return base
    from peft import get_peft_model

    policy = get_peft_model(base, adapter)
    sharpen_adapters(policy)
    return policy


def _frozen(policy: Any) -> tuple[Any, frozenset[str]]:
    """Without gradients, so that engines reserve no memory for an optimiser."""
    names = trained_names(policy)
    policy.requires_grad_(False)
    return policy, names
