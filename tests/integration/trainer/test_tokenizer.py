"""Texts of answers, against Transformers' own way."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from clotho_trainer.model.tiny import make_tokenizer
from clotho_trainer.model.tokenizer import texts_of


class Shouting(PreTrainedTokenizerFast):
    def _decode(self, *arguments: object, **options: object) -> str:
        return str(super()._decode(*arguments, **options)).upper()  # type: ignore[no-untyped-call]


def words(kind: type[PreTrainedTokenizerFast] = PreTrainedTokenizerFast, *, clean_up: bool) -> PreTrainedTokenizerFast:
    vocabulary = {"<eos>": 0, "so": 1, ".": 2, "is": 3}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    backend.decoder = decoders.WordPiece(cleanup=False)
    return kind(tokenizer_object=backend, eos_token="<eos>", clean_up_tokenization_spaces=clean_up)


@pytest.mark.parametrize(
    "tokenizer",
    [make_tokenizer(), words(clean_up=False), words(clean_up=True), words(Shouting, clean_up=False)],
    ids=["plain", "words", "cleaned up", "overridden"],
)
def test_texts_are_those_that_transformers_decodes_one_by_one(tokenizer: PreTrainedTokenizerFast) -> None:
    answers = [[1, 3, 1, 2], [1, 2, 0], []]
    one_by_one = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in answers]
    assert texts_of(tokenizer, answers) == one_by_one
