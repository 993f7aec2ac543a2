"""A complete environment to copy: add two numbers, write the answer after `=`.

Try it without a cluster, against any OpenAI-compatible server:

    OPENAI_API_KEY=... python -m clotho_environment process \
        --entry examples/own-environment/config-map/sums.py --base-url https://openrouter.ai/api/v1 --model some/model
"""

import re
from collections.abc import Iterator, Mapping

from pydantic import Field

from clotho_environment import Config, Environment, Group, SamplingClient

Sum = tuple[int, int]


class SumsConfig(Config):
    """The fields that a TrainingRun may set under `environments[].config`, besides those every environment has."""

    digits: int = Field(2, ge=1, le=9, description="Most digits of each number.")
    evaluation_size: int = Field(50, ge=1, description="Sums that an evaluation asks.")


class Sums(Environment[SumsConfig, Sum]):
    """Add two numbers; a right answer scores 1, a wrong one in the right form 0.1."""

    def items(self) -> Iterator[Sum]:
        while True:
            yield self.draw(), self.draw()

    async def rollout(self, item: Sum, client: SamplingClient) -> Group:
        completions = await client.chat(self.question(item))
        return Group(completions, [self.score(item, completion.text) for completion in completions])

    async def evaluate(self, client: SamplingClient) -> Mapping[str, float]:
        right = 0
        for _ in range(self.config.evaluation_size):
            item = self.draw(), self.draw()
            (completion,) = await client.chat(self.question(item), n=1)
            right += self.score(item, completion.text) == 1
        return {"percent_correct": 100 * right / self.config.evaluation_size}

    def draw(self) -> int:
        return self.random.randrange(10**self.config.digits)

    def question(self, item: Sum) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{item[0]}+{item[1]}? Think, then end with = and the answer."}]

    def score(self, item: Sum, text: str) -> float:
        answer = re.search(r"=\s*(\d+)\s*$", text)
        if answer is None:
            return 0.0
        return 1.0 if int(answer[1]) == sum(item) else 0.1
