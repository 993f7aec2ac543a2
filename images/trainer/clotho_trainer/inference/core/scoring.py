"""Log-probabilities of tokens that are given, not sampled, through the model's own modules."""

from typing import Any

import torch
from transformers import DynamicCache

from clotho_trainer.inference.core.engine import Scores, TopLogprobs
from clotho_trainer.inference.core.sampler import top_of

_CHUNK_TOKENS = 512  # read in one pass: the logits of a whole context would not fit


def score(model: Any, tokens: tuple[int, ...], top: int) -> Scores:
    """To be called while decoding: the weights must not change in between."""
    ids = torch.tensor([tokens], device=model.device)
    cache: Any = DynamicCache()
    logprobs: list[float | None] = [None]
    alternatives: list[TopLogprobs | None] = [None]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
            for start in range(0, len(tokens) - 1, _CHUNK_TOKENS):
                end = min(start + _CHUNK_TOKENS, len(tokens) - 1)
                logits = model(input_ids=ids[:, start:end], past_key_values=cache, use_cache=True).logits[0]
                distribution = logits.float().log_softmax(-1)
                logprobs += distribution.gather(-1, ids[0, start + 1 : end + 1, None]).squeeze(-1).tolist()
                alternatives += top_of(distribution, top) if top else ()
    finally:
        model.train(was_training)
    return Scores(tuple(logprobs), tuple(alternatives) if top else ())
