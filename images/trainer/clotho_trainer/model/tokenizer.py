"""Loads the policy's tokenizer; a failure is one sentence. Needs no torch."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clotho_contract.settings import Model
from clotho_trainer.failures import TrainerError

log = logging.getLogger(__name__)


def load_tokenizer(model: Model) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model.name, revision=model.revision, padding_side="left")
    except Exception as error:  # readers of damaged files raise anything
        raise unreadable(model, "tokenizer", error) from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise TrainerError(
                "ModelUnreadable", f"the tokenizer of {model.name} has neither a padding nor an end-of-text token"
            )
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        log.warning(
            "the tokenizer of %s has no chat template: /v1/chat/completions will refuse requests, the others work",
            model.name,
        )
    return tokenizer


def texts_of(tokenizer: Any, answers: Sequence[list[int]]) -> list[str]:
    """Without special tokens. Where Transformers adds nothing to what the tokenizers library does, that does it for all
    at once, and other threads go on meanwhile. Else from arrays: in a list Transformers looks at each token."""
    if _decodes_plainly(tokenizer):
        return list(tokenizer.backend_tokenizer.decode_batch(answers, skip_special_tokens=True))
    arrays = (np.asarray(tokens, np.int64) for tokens in answers)
    return [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in arrays]


def _decodes_plainly(tokenizer: Any) -> bool:
    from transformers import PreTrainedTokenizerFast

    plain = PreTrainedTokenizerFast._decode
    return getattr(type(tokenizer), "_decode", None) is plain and not tokenizer.clean_up_tokenization_spaces


def check_vocabulary(name: str, tokenizer: Any, embeddings: int) -> None:
    """A tokenizer with more ids than the model has embeddings belongs to another model."""
    if len(tokenizer) > embeddings:
        raise TrainerError(
            "ModelUnreadable",
            f"the tokenizer of {name} has {len(tokenizer)} tokens but the model only {embeddings} embeddings: "
            "they do not belong together",
        )


def unreadable(model: Model, what: str, error: BaseException) -> TrainerError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    place = "the folder" if Path(model.name).is_absolute() else "the repository"
    if Path(model.name).is_absolute() and not Path(model.name).exists():
        first = "it does not exist; check model.name and model.claimName"
    return TrainerError("ModelUnreadable", f"cannot read the {what} from {place} {model.name}: {first}")
