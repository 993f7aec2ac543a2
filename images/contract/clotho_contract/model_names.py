"""The many ways in which people name a model, brought to the one that is trained: its name on the Hugging Face Hub."""

import re
from typing import Final

_ROUTES: Final = ("litellm", "ollama", "ollama_chat", "huggingface", "hosted_vllm", "vllm")  # who would be asked for it
_HUBS: Final = ("hf.co", "huggingface.co")
_NAME: Final = re.compile(r"^[A-Za-z0-9][-A-Za-z0-9._]*(/[A-Za-z0-9][-A-Za-z0-9._]*)?$")


def normalise_model_name(name: str) -> str:
    """`litellm/ollama_chat/hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0` -> `Qwen/Qwen3-0.6B`. Paths stay as they are."""
    if name.startswith(("/", ".", "~")):
        return name
    parts = name.removeprefix("https://").removeprefix("http://").strip("/").split("/")
    route = []
    while len(parts) > 1 and parts[0] in _ROUTES:
        route.append(parts.pop(0))
    is_hub = parts[0] in _HUBS
    plain, _, tag = "/".join(parts[is_hub:]).partition(":")
    if any(each.startswith("ollama") for each in route) and not is_hub and "/" not in plain:
        raise ValueError(f"{name} is a name of Ollama's library; give the model's name on the Hugging Face Hub")
    plain = re.sub(r"-gguf$", "", plain, flags=re.IGNORECASE)
    if not _NAME.match(plain) or (tag and not is_hub and not route):
        raise ValueError(f"{name} is not a model's name; write it as Qwen/Qwen3-0.6B")
    return plain
