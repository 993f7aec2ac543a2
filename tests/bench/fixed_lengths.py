"""An environment for benchmarks: prompts of random tokens, answers of a fixed length, scores by chance."""

from collections.abc import Iterator

from pydantic import Field

from clotho_environment.environment import Config, Environment
from clotho_environment.group import Group
from clotho_environment.policy import Policy


class FixedLengthsConfig(Config):
    prompts: int = Field(8, ge=1, description="Different prompts.")
    prompt_tokens: int = Field(128, ge=1, description="Tokens of each.")


class FixedLengths(Environment[FixedLengthsConfig, list[int]]):
    def items(self) -> Iterator[list[int]]:
        for _ in range(self.config.prompts):
            yield [self.random.randrange(5, 40) for _ in range(self.config.prompt_tokens)]

    async def rollout(self, item: list[int], policy: Policy) -> Group:
        completions = await policy.generate(item, ignore_eos=True)
        return Group(completions, [self.random.random() for _ in completions])
