"""A tiny model that already speaks: half of the time it guesses, half of the time it calls a calculator.

The answer depends on an x that only the calculator knows, so calling it, with the right expression, is the only way
to score well; which of both to do is what reinforcement has to teach.
"""

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, set_seed

from clotho_trainer.model import tiny
from clotho_trainer.rollouts.inline.chat import Chat
from clotho_trainer.rollouts.inline.tools import methods_of

_OPEN = '<tool_call>{"name": "calculate", "arguments": {"expression": "'
_CLOSE = '"}}</tool_call>'
_CHAT = (
    "{% for tool in tools or [] %}{{ '<|user|>' ~ tool['function']['name'] }}{% endfor %}"
    "{% for message in messages %}"
    "{{ '<|tool|>' if message['role'] == 'tool' else '<|' ~ message['role'] ~ '|>' }}{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    '{{ \'<tool_call>{"name": "\' ~ call["function"]["name"] ~ \'", "arguments": \' }}'
    '{{ call["function"]["arguments"] | tojson }}{{ "}</tool_call>" }}'
    "{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
PROMPTS = [f"x+{number}" for number in range(4)]


class Desk:
    """A calculator that knows x, another one in every rollout."""

    def reset(self) -> None:
        self.x = random.randrange(6)  # noqa: S311

    def calculate(self, expression: str) -> str:
        """Work out a sum.

        Args:
            expression: such as x+3
        """
        first, second = (part.strip() for part in expression.split("+"))
        return str((self.x if first == "x" else int(first)) + int(second))


def right(output: str, expected: int, environment: Desk) -> bool:
    return output == str(environment.x + expected)


def write(folder: Path, steps: int = 200) -> None:
    set_seed(0)
    tiny.write(folder)
    tokenizer = make_tokenizer()
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    _teach(model, tokenizer, steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer() -> Any:
    tokenizer: Any = tiny.make_tokenizer()
    tokenizer.add_tokens(["<|tool|>", _OPEN, _CLOSE])
    tokenizer.chat_template = _CHAT
    return tokenizer


def _teach(model: Any, tokenizer: Any, steps: int) -> None:
    chooser = random.Random(0)  # noqa: S311
    chat = Chat(tokenizer, frozenset({tokenizer.eos_token_id}), [tool.schema for tool in methods_of(Desk(), "desk")])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    known = [_conversation(chat, tokenizer, chooser) for _ in range(400)]
    for _ in range(steps):
        rows = chooser.sample(known, 32)
        longest = max(len(tokens) for tokens, _ in rows)
        ids = torch.tensor([tokens + [tokenizer.pad_token_id] * (longest - len(tokens)) for tokens, _ in rows])
        labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _conversation(chat: Chat, tokenizer: Any, chooser: random.Random) -> tuple[list[int], list[int]]:
    number, x = chooser.randrange(4), chooser.randrange(6)
    prompt = chat.prompt([{"role": "user", "content": f"x+{number}"}])
    end = [tokenizer.eos_token_id]
    if chooser.random() < 0.5:
        guess = chat.tokens(str(chooser.randrange(9))) + end
        return prompt + guess, [-100] * len(prompt) + guess
    asked = number if chooser.random() < 0.5 else chooser.randrange(4)
    call = chat.tokens(f"{_OPEN}x+{asked}{_CLOSE}") + end
    result = chat.after_call(["calculate"], [str(x + asked)])
    answer = chat.tokens(str(x + asked)) + end
    unseen = [-100] * len(result)
    return prompt + call + result + answer, [-100] * len(prompt) + call + unseen + answer
