"""Text generation with a trained policy: whole texts, not samples for training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from clotho_trainer.failures import TrainerError
from clotho_trainer.model.tool_calls import without_thought
from clotho_trainer.rollouts.inline.chat import Chat
from clotho_trainer.training.backend import Backend
from clotho_trainer.training.local.backend import LocalBackend


@dataclass(frozen=True)
class GenerationOptions:
    max_new_tokens: int = 256
    temperature: float = 0.7  # 0 takes the likeliest token
    repetition_penalty: float = 1.2
    instructions: str = ""
    schemas: Sequence[Mapping[str, Any]] = ()  # of the tools offered


def local(backend: Backend) -> LocalBackend:
    if not isinstance(backend, LocalBackend):
        raise TrainerError("InvalidConfig", "the weights are with the Tinker service, not on this machine")
    return backend


def generate(backend: Backend, prompt: str | Sequence[Mapping[str, Any]], options: GenerationOptions) -> str:
    """Only the new tokens, and without the <think> block."""
    live, tokenizer = local(backend).live, backend.tokenizer
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]
    if options.instructions:
        messages.insert(0, {"role": "system", "content": options.instructions})
    chat = Chat(tokenizer, backend.rules.end_tokens, options.schemas)
    ids = torch.tensor([chat.prompt(messages)], device=live.device)
    sampling: dict[str, Any] = {"do_sample": False}
    if options.temperature:
        sampling = {"do_sample": True, "temperature": options.temperature}
    with live.decoding():
        live.model.eval()  # an engine with weights of its own leaves the modules as training had them
        answer = live.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=options.max_new_tokens,
            repetition_penalty=options.repetition_penalty,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=sorted(backend.rules.end_tokens),
            **sampling,
        )
    return without_thought(tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True)).strip()
