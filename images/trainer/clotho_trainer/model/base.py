"""The one way to the model below its adapters."""

from typing import Any


def base_model(model: Any) -> Any:
    """The Hugging Face model itself, whether PEFT has wrapped it or not."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
