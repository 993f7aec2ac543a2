"""What 8 bits change, on random weights and on the same weights after they were trained.

A small Qwen3 learns to write this project's documentation, character by character, until its loss no longer depends on
chance. Both models are then measured in two ways:

`rounding`: log-probabilities of text that was not trained on, rounded model against exact one, for one scale a decoder
layer (what `model.quantization: fp8` does), one a matrix, and one an output channel. `cache`: the same for rounded keys
and values, with a scale for each token and head (what `inference.kvCacheDtype: fp8` does), and with none. `training`:
GRPO steps through the real backend, each on samples of its own engine, in bfloat16, with the base in fp8, and with the
key-value cache in fp8: how far the engine's log-probabilities are from those of the training forward, and the share of
tokens that the loss clips for it.

The last line is JSON. Without a GPU, the arithmetic of 8 bits is emulated: same roundings, exact sums.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("images/contract", "images/trainer", "tests")]

from clotho_contract.config import RunConfig, RunIdentity  # noqa: E402
from clotho_contract.settings import Inference, Lora, Loss, Model, Training  # noqa: E402
from clotho_contract.trajectory import ScoredGroup  # noqa: E402
from clotho_trainer.inference.core.engine import Request, Sampling  # noqa: E402
from clotho_trainer.model import fp8, load, tiny  # noqa: E402
from clotho_trainer.training.batch import prepare  # noqa: E402
from clotho_trainer.training.local import backend as local_backend  # noqa: E402
from rig import locked_versions, rounded_attention  # noqa: E402

LENGTH, GROUPS, GROUP, NEW_TOKENS = 128, 8, 8, 48
WEIGHTED = 0.2  # the clip range of dapo: a token whose log-probability moves further counts as clipped
SCALES = ("layer", "matrix", "channel")
CACHE_SCALES = {"token_and_head": rounded_attention.with_own_scales, "constant": rounded_attention.with_constant_scale}
KINDS = {  # model.quantization and inference.kvCacheDtype
    "none": ("none", "auto"),
    "fp8": ("fp8", "auto"),
    "fp8_cache": ("none", "fp8"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pretraining-steps", type=int, default=500)
    parser.add_argument("--training-steps", type=int, default=8)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        load.require_quantization = lambda _: None  # type: ignore[assignment]
    torch.manual_seed(0)
    trained, held_out = _text(tiny.make_tokenizer())
    model = _make_model(options)
    results: dict[str, Any] = {}
    for name, steps in (("random", 0), ("trained", options.pretraining_steps)):
        _pretrain(model, trained, steps)
        results[name] = _measure(model, held_out, options.training_steps)
        print(json.dumps({name: results[name]}), file=sys.stderr, flush=True)
    work = {"hidden": options.hidden, "layers": options.layers, "pretraining_steps": options.pretraining_steps}
    print(json.dumps({"bench": "fp8", "work": work, "versions": locked_versions.running(), **results}))


def _text(tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of the documentation; the last twentieth is not trained on."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    ids = torch.tensor(tokenizer("\n".join(page.read_text() for page in pages))["input_ids"])
    split = len(ids) * 19 // 20
    return ids[:split], ids[split:]


def _make_model(options: argparse.Namespace) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tiny.make_tokenizer()
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=len(tokenizer),
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 32,
        num_key_value_heads=options.hidden // 64,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config).to(_device())


def _pretrain(model: Any, text: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=max(steps, 1) + 1)
    model.train()
    for step in range(steps):
        loss = _loss(model, _rows(text, 16))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 3)}), file=sys.stderr, flush=True)


def _rows(text: torch.Tensor, count: int) -> torch.Tensor:
    starts = torch.randint(len(text) - LENGTH - 1, (count,))
    return torch.stack([text[start : start + LENGTH] for start in starts.tolist()]).to(_device())


def _loss(model: Any, rows: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=rows, labels=rows).loss
    return loss


def _measure(model: Any, held_out: torch.Tensor, steps: int) -> dict[str, Any]:
    model.eval()
    with torch.no_grad():
        rows = _rows(held_out, 64)
        exact, loss = _logprobs(model, rows), _loss(model, rows).item()
        rounding = {scales: _change(exact, _with_rounding(model, rows, scales)) for scales in SCALES}
        cache = {name: _change(exact, _with_rounded_cache(model, rows, name)) for name in CACHE_SCALES}
    training = {kind: asyncio.run(_train(model, kind, held_out, steps)) for kind in KINDS}
    return {"loss": round(loss, 3), "rounding": rounding, "cache": cache, "training": training}


def _change(exact: torch.Tensor, rounded: torch.Tensor) -> dict[str, float]:
    apart = (rounded - exact).abs()
    beyond = (apart > WEIGHTED).float().mean().item()
    return {"mean": round(apart.mean().item(), 4), "max": round(apart.max().item(), 3), "beyond": round(beyond, 4)}


def _logprobs(model: Any, rows: torch.Tensor) -> torch.Tensor:
    logprobs = model(input_ids=rows).logits[:, :-1].float().log_softmax(-1)
    return logprobs.gather(-1, rows[:, 1:, None]).squeeze(-1)


def _with_rounding(model: Any, rows: torch.Tensor, scales: str) -> torch.Tensor:
    """Weights rounded with such scales, inputs row by row; the model is as it was afterwards."""
    hooks, kept = [], []
    for layer in model.model.layers:
        linears = [module for module in layer.modules() if type(module) is torch.nn.Linear]
        largest = torch.stack([linear.weight.abs().amax() for linear in linears]).amax()
        for linear in linears:
            weight = linear.weight.data
            of = {"layer": largest, "matrix": weight.abs().amax(), "channel": weight.abs().amax(1, keepdim=True)}
            scale = of[scales].clamp(min=fp8.LEAST) / fp8.LARGEST
            kept.append((linear, weight))
            linear.weight.data = (weight / scale).to(fp8.FP8).float() * scale
            hooks.append(linear.register_forward_pre_hook(_round_input))
    try:
        return _logprobs(model, rows)
    finally:
        for hook in hooks:
            hook.remove()
        for linear, weight in kept:
            linear.weight.data = weight


def _with_rounded_cache(model: Any, rows: torch.Tensor, scales: str) -> torch.Tensor:
    rounded_attention.round_keys_and_values(model, CACHE_SCALES[scales])
    try:
        return _logprobs(model, rows)
    finally:
        model.set_attn_implementation("sdpa")


def _round_input(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
    values, scale = fp8.rounded(inputs[0])
    return values.float() * scale


async def _train(model: Any, kind: str, text: torch.Tensor, steps: int) -> dict[str, float]:
    """Steps towards more letters e, so that the adapters become more than zeros."""
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        tiny.make_tokenizer().save_pretrained(name)
        backend = local_backend.load_backend(_config(name, kind, steps), Path(name))
        await backend.engine.start()
        chooser, figures = random.Random(0), []  # noqa: S311
        for _ in range(steps):
            starts = [chooser.randrange(len(text) - 33) for _ in range(GROUPS)]
            prompts = [tuple(text[start : start + 32].tolist()) for start in starts]
            groups = await asyncio.gather(*(_group(backend, prompt) for prompt in prompts))
            batch = prepare(groups, backend.rules, backend.version)
            figures.append(await asyncio.to_thread(backend.step, batch, 1e-3))
            await backend.engine.publish()
        await backend.engine.stop()
    return {
        "logprob_difference": round(mean(step["sampling/logprob_difference"] for step in figures), 4),
        "clipped_share": round(mean(step["clip_ratio/region_mean"] for step in figures), 4),
    }


async def _group(backend: Any, prompt: tuple[int, ...]) -> ScoredGroup:
    samples = await backend.engine.generate(Request(prompt, Sampling(max_tokens=NEW_TOKENS, ignore_end=True), GROUP))
    return ScoredGroup(
        tokens=[[*prompt, *sample.tokens] for sample in samples],
        masks=[[-100] * len(prompt) + list(sample.tokens) for sample in samples],
        inference_logprobs=[[1.0] * len(prompt) + list(sample.logprobs) for sample in samples],
        scores=[sample.text.count("e") / NEW_TOKENS for sample in samples],
    )


def _config(model: str, kind: str, steps: int) -> RunConfig:
    quantization, cache = KINDS[kind]
    return RunConfig(
        run=RunIdentity(name="fp8", namespace="bench", id="fp8"),
        model=Model(name=model, dtype="bfloat16", quantization=quantization),  # type: ignore[arg-type]
        training=Training(
            steps=max(steps, 1),
            batch_size=GROUPS * GROUP,
            max_tokens=LENGTH,
            learning_rate=1e-3,
            lora=Lora(rank=8, alpha=16.0),
            loss=Loss(type="dapo"),  # it clips what cispo would weight
        ),
        inference=Inference(engine="fast", max_batch_size=GROUPS * GROUP, kv_cache_dtype=cache),  # type: ignore[arg-type]
    )


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    main()
