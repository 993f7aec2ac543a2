"""`letters`: the smallest task that a tiny model really learns; the quickstart and the tests run it."""

import itertools
from collections.abc import Iterator, Mapping

from pydantic import Field

from clotho_environment.sdk.environment import Config, Environment
from clotho_environment.sdk.group import Group
from clotho_environment.sdk.sampling import SamplingClient


class LettersConfig(Config):
    letters: str = Field("abcdefgh", min_length=1, description="Each letter is a task.")
    group_size: int = Field(8, ge=1, description="Attempts at each letter.")
    max_tokens: int = Field(8, ge=1, description="Letters to write.")


class Letters(Environment[LettersConfig, str]):
    """Write the letter of the prompt again and again; the score is the fraction of letters that are right."""

    def items(self) -> Iterator[str]:
        letters = self.config.letters
        start = self.random.randrange(len(letters))
        return itertools.islice(itertools.cycle(letters), start, start + len(letters))

    async def rollout(self, item: str, client: SamplingClient) -> Group:
        completions = await client.complete(f"{item}>")
        return Group(completions, [self.score(item, completion.text) for completion in completions])

    async def evaluate(self, client: SamplingClient) -> Mapping[str, float]:
        scores = [
            self.score(letter, completion.text)
            for letter in self.config.letters
            for completion in await client.complete(f"{letter}>", n=1)
        ]
        return {"score_mean": sum(scores) / len(scores)}

    def score(self, letter: str, text: str) -> float:
        return text[: self.config.max_tokens].count(letter) / self.config.max_tokens
