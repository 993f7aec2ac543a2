"""Training steps over a few long rows, without sampling: seconds, memory, and the rate beside that of large products.

The side `fitting` leaves it to the trainer which layers recompute their activations, `recomputed` makes all of them do
so; each runs in a process of its own. `tflops` counts the arithmetic of a step once, without what is recomputed and
without adapters. `products_tflops` is what the same GPU reaches with large products, measured in the same process, and
`rate` the share of it. The last line is JSON; `ratio` is more than 1 where leaving it to the trainer is faster.

    python tests/bench/long_rows.py --shape tiny --new-tokens 64      a dry run on any machine
    python tests/bench/long_rows.py                                   on a GPU: 16 rows of 16,384 tokens
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import structs

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / folder for folder in ("images/contract", "images/trainer", "tests")]
sys.path[:0] = [str(path) for path in (*SOURCES, Path(__file__).parent)]

import trainer_run  # noqa: E402
import trainer_work  # noqa: E402

from rig import locked_versions  # noqa: E402

SIDES = {"fitting": None, "recomputed": True}
_PRODUCT_SECONDS = 2.0  # long enough for the GPU to reach its power limit


def main() -> None:
    options = _options()
    trainer_work.prepare(options)
    if options.side:
        print(json.dumps(_measure(options)))
        return
    sides = {side: trainer_work.in_own_process(side) for side in SIDES}
    work = {
        name: getattr(options, name) for name in ("shape", "prompts", "group", "prompt_tokens", "new_tokens", "rank")
    }
    ratio = round(sides["recomputed"]["seconds"] / sides["fitting"]["seconds"], 3)
    print(
        json.dumps({"bench": "long_rows", "work": work, "versions": locked_versions.running(), **sides, "ratio": ratio})
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=2, group=8, new_tokens=16_384 - 128, micro=0)
    trainer_run.add_options(parser)
    return parser.parse_args()


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    from clotho_trainer.model.tiny import make_tokenizer
    from clotho_trainer.training.batch import packed_tokens, prepare
    from clotho_trainer.training.local.backend import LocalBackend

    tokenizer = make_tokenizer()
    longest = options.prompt_tokens + options.new_tokens
    model = trainer_work.make_model(options.shape, tokenizer, longest)
    config = trainer_run.config(options)
    training = structs.replace(config.training, gradient_checkpointing=SIDES[options.side])
    backend = LocalBackend(structs.replace(config, training=training), model, tokenizer, Path(tempfile.mkdtemp()))
    backend.rehearse()
    seconds, peaks = [], []
    for step in range(options.steps + 1):  # the first compiles what the rehearsal did not
        batch = prepare(trainer_work.scored_groups(options, options.prompts), backend.rules, backend.version)
        began = time.perf_counter()
        figures = backend.step(batch, 1e-6)
        seconds.append(round(time.perf_counter() - began, 3))
        if "gpu/memory_peak_bytes" in figures:
            peaks.append(figures["gpu/memory_peak_bytes"])
        print(json.dumps({"step": step, "seconds": seconds[-1]}), file=sys.stderr, flush=True)
    tokens = packed_tokens(batch.rows)
    tflops = _operations(options, tokens) / median(seconds[1:]) / 1e12
    products = _products_tflops()
    return {
        "seconds": median(seconds[1:]),
        "seconds_by_step": seconds,
        "tokens_per_second": round(tokens / median(seconds[1:])),
        "recomputed_layers": backend._activations.recomputed_layers(longest),
        "layers": backend._activations.layers,
        "peak_gib": round(max(peaks) / 2**30, 1) if peaks else None,
        "tflops": round(tflops, 3),
        "products_tflops": round(products, 3),
        "rate": round(tflops / products, 3),
    }


def _operations(options: argparse.Namespace, tokens: int) -> float:
    """Of layers that are frozen: no gradients of weights. Attention is causal; its backward pass has five products for
    the two of its forward pass. The head computes logits, and the gradient beside them."""
    shape = trainer_work.SHAPES[options.shape]
    heads, kv_heads, dim = (shape[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    attention = (2 * heads + 2 * kv_heads) * dim * shape["hidden_size"]
    weights = shape["num_hidden_layers"] * (attention + 3 * shape["hidden_size"] * shape["intermediate_size"])
    rows, longest = options.prompts * options.group, options.prompt_tokens + options.new_tokens
    pairs = rows * longest**2 / 2
    scores = shape["num_hidden_layers"] * pairs * heads * dim
    head = rows * options.new_tokens * shape["vocab_size"] * shape["hidden_size"]
    return float(2 * (2 * weights * tokens + 7 * scores + 2 * head))


def _products_tflops() -> float:
    import torch

    on_gpu = torch.cuda.is_available()
    size, kind, device = (8192, torch.bfloat16, "cuda") if on_gpu else (256, torch.float32, "cpu")
    left, right = torch.randn(2, size, size, dtype=kind, device=device)
    result, count, began = left @ right, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < _PRODUCT_SECONDS:
        for _ in range(10):
            torch.mm(left, right, out=result)
        count += 10
        if on_gpu:
            torch.cuda.synchronize()
    return 2 * size**3 * count / elapsed / 1e12


if __name__ == "__main__":
    main()
