"""Decoding with the key-value cache in 8 bits beside 16: two fast engines over the same random weights and adapter, in
one process and in turns.

`tokens_per_second` is that of answers of equal and of ragged lengths, and of long prompts, asked for inside the
process; `step_ms` follows from the equal and the long ones. `logprobs` compares the tokens that each engine sampled
with the training forward: what importance ratios have to correct. The last line is JSON.

    python tests/bench/kv_cache.py --shape tiny --new-tokens 16 --long-tokens 64      a dry run on any machine
    python tests/bench/kv_cache.py                                                    on a GPU
"""

import argparse
import asyncio
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "images" / part for part in ("contract", "trainer")]
sys.path[:0] = [str(source) for source in (*SOURCES, Path(__file__).parent, ROOT / "tests")]

import torch  # noqa: E402
import trainer_work  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402

from clotho_trainer.inference.core.engine import Completion, Request, Sampling  # noqa: E402
from clotho_trainer.inference.paged.cache import BLOCK_SIZE, CacheShape, bytes_per_token  # noqa: E402
from clotho_trainer.inference.paged.engine import FastEngine  # noqa: E402
from clotho_trainer.inference.paged.weights import PolicyWeights  # noqa: E402
from clotho_trainer.model.live import LiveWeights  # noqa: E402
from clotho_trainer.model.load import context_length, sharpen_adapters  # noqa: E402
from clotho_trainer.model.tiny import make_tokenizer  # noqa: E402
from rig import locked_versions  # noqa: E402

CACHES = {"auto": False, "fp8": True}
CLIPPED = 0.2  # a log-probability that moves further is clipped by dapo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=8, group=16, new_tokens=512, micro=8)
    parser.add_argument("--long-tokens", type=int, default=3500, help="of the prompts of the load `long`")
    parser.add_argument("--loads", default="equal,ragged,long", help="what is measured, in this order")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(json.dumps({"bench": "kv_cache", "versions": locked_versions.running(), **asyncio.run(_measure(options))}))


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    live = _policy(options)
    weights = PolicyWeights(live.model, context_length(live.model))
    loads = _loads(options)
    engines = {name: _engine(live, weights, loads, in_fp8) for name, in_fp8 in CACHES.items()}
    for engine in engines.values():
        await engine.start()
        await _generate(engine, [(prompt, n, 16) for prompt, n, _ in loads["equal"]])  # warms up
    measured = options.loads.split(",")
    rates: dict[str, dict[str, list[float]]] = {name: {load: [] for load in measured} for name in engines}
    logprobs: dict[str, Any] = {}
    for load in measured:
        requests = loads[load]
        for _ in range(options.rounds):
            for name, engine in engines.items():
                began = time.perf_counter()
                completions = await _generate(engine, requests)
                tokens = sum(len(completion.tokens) for _, completion in completions)
                rates[name][load].append(round(tokens / (time.perf_counter() - began), 1))
                print(json.dumps({"load": load, "cache": name, "rate": rates[name][load][-1]}), file=sys.stderr)
                if load == "equal":
                    logprobs[name] = _apart(live, completions[:: options.group])
    for engine in engines.values():
        await engine.stop()
    rows = {load: sum(n for _, n, _ in loads[load]) for load in measured if load != "ragged"}
    return {
        "tokens_per_second": rates,
        "step_ms": {
            name: {load: round(rows[load] / max(rates[name][load]) * 1000, 2) for load in rows} for name in engines
        },
        "logprobs": logprobs,
        "cache_bytes_per_token": {name: bytes_per_token(weights, in_fp8=in_fp8) for name, in_fp8 in CACHES.items()},
    }


def _policy(options: argparse.Namespace) -> LiveWeights:
    """With an adapter whose output is not zero."""
    tokenizer = make_tokenizer()
    adapter = LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear")
    model: Any = get_peft_model(trainer_work.make_model(options.shape, tokenizer), adapter)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=1e-3)
    sharpen_adapters(model)
    return LiveWeights(model, tokenizer)


def _loads(options: argparse.Namespace) -> dict[str, list[tuple[list[int], int, int]]]:
    """Half as many rows have long prompts."""
    long = copy.copy(options)
    long.prompt_tokens, long.group, long.new_tokens = options.long_tokens, options.group // 2, options.new_tokens // 2
    return {
        "equal": trainer_work.requests(options, "equal"),
        "ragged": trainer_work.requests(options, "ragged"),
        "long": trainer_work.requests(long, "equal"),
    }


def _engine(live: LiveWeights, weights: PolicyWeights, loads: dict[str, Any], in_fp8: bool) -> FastEngine:
    """With room for all rows of a load at once."""
    rows = sum(n for _, n, _ in loads["equal"])
    needed = [
        sum(n * -(-(len(prompt) + tokens) // BLOCK_SIZE) for prompt, n, tokens in loads[load])
        for load in ("equal", "long")
    ]
    return FastEngine(live, weights, frozenset(), CacheShape(max(needed) + rows, in_fp8=in_fp8), max_rows=rows)


async def _generate(engine: FastEngine, requests: list[tuple[list[int], int, int]]) -> list[tuple[Any, Completion]]:
    async def ask(prompt: list[int], n: int, tokens: int) -> list[tuple[Any, Completion]]:
        sampling = Sampling(max_tokens=tokens, ignore_end=True)
        answers = await engine.generate(Request(tuple(prompt), sampling, n))
        return [(prompt, completion) for completion in answers]

    found = await asyncio.gather(*(ask(*request) for request in requests))
    return [each for answers in found for each in answers]


@torch.no_grad()
def _apart(live: LiveWeights, completions: list[tuple[Any, Completion]]) -> dict[str, float]:
    """One answer a prompt is enough: thousands of tokens."""
    apart = []
    for prompt, completion in completions:
        ids = torch.tensor([[*prompt, *completion.tokens]], device=live.device)
        with live.training(), torch.autocast(live.device.type, torch.bfloat16, enabled=live.device.type == "cuda"):
            logits = live.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None]).squeeze(-1).cpu()
        apart.append((torch.tensor(completion.logprobs) - chosen).abs())
    change = torch.cat(apart)
    clipped = (change > CLIPPED).float().mean().item()
    return {"mean": round(change.mean().item(), 4), "max": round(change.max().item(), 3), "clipped": round(clipped, 4)}


if __name__ == "__main__":
    main()
