"""One GRPO step of Qwen3-8B's shape (random weights, LoRA) through this trainer and through stock TRL, in one run.

Each side gets a process of its own, so that neither inherits the other's memory. The last line is JSON; `ratio` is
stock seconds over ours, so more than 1 means that this trainer is faster.

    python tests/bench/trainer.py --shape tiny                    a dry run on any machine
    python tests/bench/trainer.py --packages DIR                  on a GPU; DIR holds packages the machine lacks
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
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


def main() -> None:
    options = _options()
    for path in ("images/contract", "images/trainer"):
        sys.path.insert(0, str(ROOT / path))
    if options.packages:
        sys.path.append(str(options.packages))  # last: what the machine has itself wins
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if options.side:
        print(json.dumps(_ours(options) if options.side == "ours" else _stock(options)))
        return
    sides = {side: _in_own_process(side) for side in ("ours", "stock")}
    ratio = round(sides["stock"]["seconds_per_step"] / sides["ours"]["seconds_per_step"], 3)
    work = {
        name: getattr(options, name) for name in ("shape", "prompts", "group", "prompt_tokens", "new_tokens", "micro")
    }
    print(json.dumps({"bench": "trainer", "work": work, **sides, "ratio": ratio}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--micro", type=int, default=8, help="sequences a forward and backward pass, on both sides")
    parser.add_argument("--steps", type=int, default=2, help="measured; one more warms up")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--packages", type=Path, help="a folder of unpacked packages that this machine lacks")
    parser.add_argument("--side", choices=["ours", "stock"], help="measure one side only, in this process")
    return parser.parse_args()


def _in_own_process(side: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the side {side} failed with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps({"side": side, **result}), file=sys.stderr)
    return result


def _model_and_tokenizer(options: argparse.Namespace) -> tuple[Any, Any]:
    """Random weights made where they are used; the tokenizer of single characters, whose ids all shapes have."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from clotho_trainer.tiny_model import make_tokenizer

    on_gpu = torch.cuda.is_available()
    tokenizer = make_tokenizer()
    config = AutoConfig.for_model(
        "qwen3",
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **SHAPES[options.shape],
    )
    torch.manual_seed(0)
    with torch.device("cuda" if on_gpu else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if on_gpu else torch.float32)
    return model, tokenizer


def _prompt_texts(options: argparse.Namespace) -> list[str]:
    chooser = random.Random(0)  # noqa: S311
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(chooser.choice(letters) for _ in range(options.prompt_tokens)) for _ in range(options.prompts)]


def _ours(options: argparse.Namespace) -> dict[str, Any]:
    from clotho_contract.config import Endpoints, RunConfig, RunIdentity
    from clotho_contract.settings import Inference, Lora, Model, Training
    from clotho_trainer.local_backend import LocalBackend

    rows = options.prompts * options.group
    config = RunConfig(
        run=RunIdentity(name="bench", namespace="bench", id="bench"),
        endpoints=Endpoints(api_server="http://unused", inference="http://unused"),
        model=Model(name=options.shape),
        training=Training(
            steps=options.steps + 1,
            batch_size=rows,
            micro_batch_size=options.micro,
            max_tokens=options.prompt_tokens + options.new_tokens,
            learning_rate=1e-6,
            lora=Lora(rank=options.rank, alpha=2.0 * options.rank),
        ),
        inference=Inference(max_batch_size=rows),
    )
    model, tokenizer = _model_and_tokenizer(options)
    backend = LocalBackend(config, model, tokenizer, Path(tempfile.mkdtemp()))
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in _prompt_texts(options)]
    return asyncio.run(_measure_ours(backend, prompts, options))


async def _measure_ours(backend: Any, prompts: list[tuple[int, ...]], options: argparse.Namespace) -> dict[str, Any]:
    from clotho_trainer.batch import prepare
    from clotho_trainer.groups import Group
    from clotho_trainer.inference.engine import Request, Sampling

    sampling = Sampling(max_tokens=options.new_tokens, ignore_end=True)
    chooser = random.Random(1)  # noqa: S311
    await backend.engine.start()
    generating, training = [], []
    for _ in range(options.steps + 1):
        began = time.perf_counter()
        requests = (Request(prompt, sampling, options.group) for prompt in prompts)
        answers = await asyncio.gather(*(backend.engine.generate(request) for request in requests))
        generated = time.perf_counter()
        groups = [
            Group(
                tokens=[[*prompt, *sample.tokens] for sample in samples],
                masks=[[-100] * len(prompt) + list(sample.tokens) for sample in samples],
                inference_logprobs=[[1.0] * len(prompt) + list(sample.logprobs) for sample in samples],
                scores=[chooser.random() for _ in samples],
            )
            for prompt, samples in zip(prompts, answers, strict=True)
        ]
        batch = prepare(groups, backend.rules, backend.version)
        figures = await asyncio.to_thread(backend.step, batch, 1e-6)
        generating.append(generated - began)
        training.append(time.perf_counter() - generated)
    await backend.engine.stop()
    return {
        **_result([g + t for g, t in zip(generating, training, strict=True)], options),
        "generate_seconds": _mean(generating[1:]),
        "train_seconds": _mean(training[1:]),
        "clipped_share_when_on_policy": figures["clip_ratio/region_mean"],
    }


def _stock(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = _model_and_tokenizer(options)
    ends: list[float] = []

    class Stopwatch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    chooser = random.Random(1)  # noqa: S311
    rows = options.prompts * options.group
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            per_device_train_batch_size=options.micro,
            gradient_accumulation_steps=rows // options.micro,
            num_generations=options.group,
            max_completion_length=options.new_tokens,
            generation_kwargs={"min_new_tokens": options.new_tokens},
            learning_rate=1e-6,
            max_steps=options.steps + 1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [chooser.random() for _ in completions],
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": _prompt_texts(options) * (options.steps + 1)}),
            processing_class=tokenizer,
            peft_config=LoraConfig(
                r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            callbacks=[Stopwatch()],
        )
        sys.stdout, kept = sys.stderr, sys.stdout  # TRL prints its log lines
        trainer.train()
        sys.stdout = kept
    return _result([after - before for before, after in pairwise(ends)], options)


def _result(seconds: list[float], options: argparse.Namespace) -> dict[str, Any]:
    import torch

    measured = _mean(seconds[1:])
    tokens = options.prompts * options.group * options.new_tokens
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "seconds_per_step": measured,
        "first_step_seconds": round(seconds[0], 3),
        "tokens_per_second": round(tokens / measured, 1),
        "peak_gib": round(peak, 1) if peak is not None else None,
    }


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 4)


if __name__ == "__main__":
    main()
