"""What people use otherwise, on the work of the trainer's benchmark: TRL, TRL with vLLM, and vLLM alone."""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import trainer_work

_VLLM = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}  # FlashInfer compiles with nvcc when it starts
VLLM_KINDS = ("merged", "adapter")
_MEMORY_SHARE = 0.35  # for vLLM beside the training: the rest keeps all activations at Qwen3-8B's shape


def stock(options: argparse.Namespace) -> dict[str, Any]:
    """TRL as it comes, generating with Transformers."""
    return _trl(options, {"generation_kwargs": {"min_new_tokens": options.new_tokens}})


def trl_vllm(options: argparse.Namespace) -> dict[str, Any]:
    """vLLM in TRL's process, and activations kept, which is its fastest where they fit. vLLM's weights come from TRL's
    first synchronisation, so none are read from a disk."""
    os.environ.update(_VLLM)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import trl.generation.vllm_generation as generation

    engine = generation.LLM
    longest = options.prompt_tokens + options.new_tokens + 64
    generation.LLM = lambda **settings: engine(**(settings | {"load_format": "dummy", "max_model_len": longest}))
    spent = {name: _timed(generation.VLLMGeneration, name) for name in ("generate", "sync_weights")}
    settings = {
        "generation_kwargs": {"ignore_eos": True, "detokenize": False},
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": _MEMORY_SHARE,
        "gradient_checkpointing": False,
    }
    figures = _trl(options, settings) | {"vllm_version": version("vllm")}
    a_step = {name: min(seconds[1:]) / options.together for name, seconds in spent.items()}
    return figures | {f"{name}_seconds": round(seconds, 3) for name, seconds in a_step.items()}


def vllm(options: argparse.Namespace) -> dict[str, Any]:
    """Its engine in a process of its own, which is its fastest; prompts and answers as tokens."""
    os.environ.update(_VLLM)
    with tempfile.TemporaryDirectory() as folder:
        kinds = {kind: _vllm(options, Path(folder) / kind, kind == "adapter") for kind in VLLM_KINDS}
    return {**kinds, "vllm_version": version("vllm")}


SIDES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "stock": stock,
    "trl-vllm": trl_vllm,
    "vllm": vllm,
}


def _vllm(options: argparse.Namespace, folder: Path, has_adapter: bool) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    trainer_work.write_config(options.shape, folder)
    began = time.perf_counter()
    largest = trainer_work.largest(options)
    more = {"enable_lora": True, "max_lora_rank": options.rank, "max_loras": 1} if has_adapter else {}
    engine = LLM(
        model=str(folder),
        load_format="dummy",
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_num_seqs=largest.prompts,
        max_model_len=largest.prompt_tokens + largest.new_tokens + 64,
        gpu_memory_utilization=0.5,
        logprobs_mode="processed_logprobs",
        **more,
    )
    figures: dict[str, Any] = {"start_seconds": round(time.perf_counter() - began, 1)}
    adapter = LoRARequest("adapter", 1, str(_write_adapter(options, folder / "adapter"))) if has_adapter else None

    def generate(load: str) -> float:
        asked = trainer_work.requests(options, load)
        sampling = [
            SamplingParams(n=n, temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=0)
            for _, n, tokens in asked
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt, _, _ in asked]
        began = time.perf_counter()
        outputs = engine.generate(prompts, sampling, use_tqdm=False, lora_request=adapter)
        made = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
        return round(made / (time.perf_counter() - began), 1)

    for load in options.loads:
        generate(load)  # warms up
        figures[f"{load}_tokens_per_second"] = max(generate(load) for _ in range(2))
    engine.llm_engine.engine_core.shutdown()
    return figures


def _write_adapter(options: argparse.Namespace, folder: Path) -> Path:
    """Random numbers for every linear layer of the decoder, as training.lora has them."""
    import torch
    from safetensors.torch import save_file

    shape = trainer_work.SHAPES[options.shape]
    hidden, wide = shape["hidden_size"], shape["intermediate_size"]
    queries = shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    sizes = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, wide),
        "mlp.up_proj": (hidden, wide),
        "mlp.down_proj": (wide, hidden),
    }
    weights: dict[str, torch.Tensor] = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, (inputs, outputs) in sizes.items():
            path = f"base_model.model.model.layers.{layer}.{name}"
            weights[f"{path}.lora_A.weight"] = torch.randn(options.rank, inputs, dtype=torch.bfloat16) * 0.01
            weights[f"{path}.lora_B.weight"] = torch.randn(outputs, options.rank, dtype=torch.bfloat16) * 0.01
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "none",
        "r": options.rank,
        "lora_alpha": 2 * options.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [name.partition(".")[2] for name in sizes],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _timed(owner: Any, name: str) -> list[float]:
    """The seconds of each call from now on."""
    import torch

    method, seconds = getattr(owner, name), []

    def measured(*arguments: Any, **options: Any) -> Any:
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = method(*arguments, **options)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        return result

    setattr(owner, name, measured)
    return seconds


def _trl(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers import TrainerCallback

    ends: list[float] = []

    class Stopwatch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        trainer = _trl_trainer(options, Path(folder), settings, Stopwatch())
        sys.stdout, kept = sys.stderr, sys.stdout  # TRL prints its log lines
        trainer.train()
        sys.stdout = kept
    # Each generation is for so many steps; the first cycle warms up.
    seconds = [(after - before) / options.together for before, after in pairwise(ends[:: options.together])]
    fastest = min(seconds[1:])
    tokens = options.prompts * options.group * options.new_tokens
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "seconds_per_step": round(fastest, 3),
        "first_step_seconds": round(seconds[0], 3),
        "tokens_per_second": round(tokens / fastest, 1),
        "peak_gib": round(peak, 1) if peak is not None else None,
    }


def _trl_trainer(options: argparse.Namespace, folder: Path, settings: dict[str, Any], callback: Any) -> Any:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from clotho_trainer.model.tiny import make_tokenizer

    tokenizer = make_tokenizer()
    model = trainer_work.make_model(options.shape, tokenizer)
    if settings.get("use_vllm"):  # vLLM reads the configuration from here
        trainer_work.write_config(options.shape, folder / "model")
        model.config._name_or_path = model.name_or_path = str(folder / "model")
    chooser = random.Random(1)  # noqa: S311
    cycles = 3 if settings.get("use_vllm") and options.together == 1 else 2  # one warms up
    steps, passes = cycles * options.together, options.prompts * options.group // options.micro
    arguments = GRPOConfig(
        output_dir=str(folder),
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes * options.together,
        num_generations=options.group,
        max_completion_length=options.new_tokens,
        learning_rate=1e-6,
        max_steps=steps,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **settings,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [chooser.random() for _ in completions],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": trainer_work.prompt_texts(options) * steps}),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        callbacks=[callback],
    )
