"""Runs in the trainer's image before a run of examples/tools-echo: a tiny model learns to call the example's tool.

Each call is one token of its own. What the tool answers is left unlearnt: that is for the run to learn.
Usage: python desk_model.py FOLDER INSTRUCTIONS, beside the example's train.jsonl.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, set_seed

from clotho_trainer.model import tiny
from clotho_trainer.rollouts.inline.chat import Chat

STEPS = 120
TOOL = {"type": "function", "function": {"name": "multiply"}}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ '<|user|>' ~ tool['function']['name'] }}{% endfor %}"
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    '{{ \'<tool_call>{"name": "\' ~ call["function"]["name"] ~ \'", "arguments": \' }}'
    '{{ call["function"]["arguments"] | tojson }}{{ "}</tool_call>" }}'
    "{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def write(folder: Path, instructions: str, records: list[dict[str, str]]) -> None:
    set_seed(0)
    tiny.write(folder)
    tokenizer: Any = tiny.make_tokenizer()
    tokenizer.add_tokens([call_for(record["prompt"]) for record in records])
    tokenizer.chat_template = TEMPLATE
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    teach(model, [conversation(tokenizer, instructions, record) for record in records])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def call_for(prompt: str) -> str:
    first, second = re.findall(r"\d+", prompt)
    return f'<tool_call>{{"name": "multiply", "arguments": {{"a": {first}, "b": {second}}}}}</tool_call>'


def conversation(tokenizer: Any, instructions: str, record: dict[str, str]) -> tuple[list[int], list[int]]:
    """The tokens, and the labels of those that the model writes itself."""
    chat = Chat(tokenizer, frozenset({tokenizer.eos_token_id}), [TOOL])
    end = [tokenizer.eos_token_id]
    prompt = chat.prompt([{"role": "system", "content": instructions}, {"role": "user", "content": record["prompt"]}])
    call = chat.tokens(call_for(record["prompt"])) + end
    result = chat.after_call(["multiply"], [record["expected"]])
    answer = chat.tokens(record["expected"]) + end
    unlearnt = [-100] * len(prompt) + call + [-100] * len(result) + answer
    return prompt + call + result + answer, unlearnt


def teach(model: Any, rows: list[tuple[list[int], list[int]]]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        tokens, labels = rows[step % len(rows)]
        model(input_ids=torch.tensor([tokens]), labels=torch.tensor([labels])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    lines = (Path(__file__).parent / "train.jsonl").read_text().splitlines()
    write(Path(sys.argv[1]), sys.argv[2], [json.loads(line) for line in lines])
