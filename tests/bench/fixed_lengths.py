"""An environment for benchmarks: prompts of random tokens, answers of given lengths, scores by chance."""

import asyncio
from collections.abc import Iterator

from pydantic import Field
from trainer_work import ragged_lengths

from clotho_environment.sdk.environment import Config, Environment
from clotho_environment.sdk.group import Group
from clotho_environment.sdk.sampling import SamplingClient


class FixedLengthsConfig(Config):
    prompts: int = Field(8, ge=1, description="Different prompts.")
    prompt_tokens: int = Field(128, ge=1, description="Tokens of each.")
    ragged: bool = Field(False, description="Answers of many lengths up to max_tokens, each asked for alone.")


class FixedLengths(Environment[FixedLengthsConfig, list[int]]):
    def items(self) -> Iterator[list[int]]:
        for _ in range(self.config.prompts):
            yield [self.random.randrange(5, 40) for _ in range(self.config.prompt_tokens)]

    async def rollout(self, item: list[int], client: SamplingClient) -> Group:
        if self.config.ragged:
            lengths = ragged_lengths(self.config.group_size, self.config.max_tokens, self.random.randrange(10**9))
            answers = (client.generate(item, n=1, max_tokens=length, ignore_eos=True) for length in lengths)
            completions = [completion for answer in await asyncio.gather(*answers) for completion in answer]
        else:
            completions = await client.generate(item, ignore_eos=True)
        return Group(completions, [self.random.random() for _ in completions])
