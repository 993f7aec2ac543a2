"""What the trainer's benchmarks work on: shapes, random weights, prompts."""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "small": {  # gradients of some megabytes, steps of some seconds on a share of a core
        "vocab_size": 128,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "tiny": {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}

CONTEXT = 4096  # tokens of a sequence at most

# What an inference server is asked for at once, where it differs from the work.
LOADS: dict[str, dict[str, int]] = {
    "equal": {},
    "ragged": {},
    "32-rows": {"prompts": 2, "group": 16},
    "256-rows": {"prompts": 16, "group": 16},
    "long-prompts": {"prompts": 8, "group": 8, "prompt_tokens": 3500, "new_tokens": 256},
}


def add_options(parser: argparse.ArgumentParser, *, prompts: int, group: int, new_tokens: int, micro: int) -> None:
    """What the work is, and where; each benchmark has a size of its own."""
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--prompts", type=int, default=prompts)
    parser.add_argument("--group", type=int, default=group)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=new_tokens)
    parser.add_argument("--micro", type=int, default=micro, help="sequences a pass, where the trainer does not decide")
    parser.add_argument("--rank", type=int, default=32, help="of the adapters; 0 trains all weights")
    parser.add_argument("--packages", type=Path, help="a folder of unpacked packages that this machine lacks")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)


def prepare(options: argparse.Namespace) -> None:
    """Before anything heavy is imported."""
    if options.packages:
        sys.path.append(str(options.packages))  # last: what the machine has itself wins
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def in_own_process(side: str, *more: str, python: str = sys.executable) -> dict[str, Any]:
    """Of the benchmark that runs, so that no side inherits the other's memory."""
    command = [python, *sys.argv, "--side", side, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the side {side} failed with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps({"side": side, **result}), file=sys.stderr, flush=True)
    return result


def arguments(options: argparse.Namespace) -> list[str]:
    """The same work for another process."""
    names = ("shape", "prompts", "group", "prompt_tokens", "new_tokens", "micro", "rank")
    return [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]


def make_model(shape: str, tokenizer: Any, context: int = CONTEXT) -> Any:
    """Random weights, made where they are used."""
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    torch.manual_seed(0)
    with torch.device("cuda" if on_gpu else "cpu"):
        return AutoModelForCausalLM.from_config(
            _config(shape, tokenizer, context), dtype=torch.bfloat16 if on_gpu else torch.float32
        )


def write_config(shape: str, folder: Path) -> None:
    """A model's folder without weights, for programs that make up their own."""
    from clotho_trainer.model.tiny import make_tokenizer

    tokenizer = make_tokenizer()
    config = _config(shape, tokenizer, CONTEXT)
    config.architectures, config.dtype = ["Qwen3ForCausalLM"], "bfloat16"
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _config(shape: str, tokenizer: Any, context: int) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(
        "qwen3",
        max_position_embeddings=context,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **SHAPES[shape],
    )


def prompt_texts(options: argparse.Namespace) -> list[str]:
    chooser = random.Random(0)  # noqa: S311
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(chooser.choice(letters) for _ in range(options.prompt_tokens)) for _ in range(options.prompts)]


def ragged_lengths(count: int, longest: int, seed: int = 2) -> list[int]:
    """Answers as they come in practice: many short ones, a few that run into the limit."""
    chooser = random.Random(seed)  # noqa: S311
    return [min(max(int(chooser.expovariate(1 / (0.35 * longest))), 1), longest) for _ in range(count)]


def largest(options: argparse.Namespace) -> argparse.Namespace:
    """Work with as many rows, and as many tokens in each, as any of the loads."""
    asked = [_of_load(options, load) for load in options.loads]
    rows = max(each.prompts * each.group for each in asked)
    tokens = max(each.prompt_tokens + each.new_tokens for each in asked)
    sizes = {"prompts": rows, "group": 1, "prompt_tokens": tokens - options.new_tokens}
    return argparse.Namespace(**(vars(options) | sizes))


def _of_load(options: argparse.Namespace, load: str) -> argparse.Namespace:
    return argparse.Namespace(**(vars(options) | LOADS[load]))


def requests(options: argparse.Namespace, load: str) -> list[tuple[list[int], int, int]]:
    """Prompt, answers, tokens of each. Ragged answers are asked for one by one, five batches of them."""
    options = _of_load(options, load)
    rows = options.prompts * options.group
    prompts = token_prompts(options, options.prompts)
    if load != "ragged":
        return [(prompt, options.group, options.new_tokens) for prompt in prompts]
    lengths = ragged_lengths(5 * rows, options.new_tokens)
    return [(prompts[index // options.group % options.prompts], 1, length) for index, length in enumerate(lengths)]


def token_prompts(options: argparse.Namespace, count: int) -> list[list[int]]:
    chooser = random.Random(3)  # noqa: S311
    return [[chooser.randrange(5, 40) for _ in range(options.prompt_tokens)] for _ in range(count)]


def scored_groups(options: argparse.Namespace, count: int) -> list[Any]:
    """As an environment sends them: all answers of the longest length, scores by chance."""
    from clotho_contract.trajectory import NO_LOGPROB, ScoredGroup

    chooser = random.Random(0)  # noqa: S311
    made = []
    for prompt in token_prompts(options, count):
        answers = [[chooser.randrange(5, 60) for _ in range(options.new_tokens)] for _ in range(options.group)]
        made.append(
            ScoredGroup(
                tokens=[prompt + answer for answer in answers],
                masks=[[-100] * len(prompt) + answer for answer in answers],
                scores=[chooser.random() for _ in answers],
                inference_logprobs=[
                    [NO_LOGPROB] * len(prompt) + [-chooser.expovariate(2.0) for _ in answer] for answer in answers
                ],
            )
        )
    return made
