"""An ordinary Atropos environment, as its authors write them: nothing in it refers to Clotho."""

import random

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup
from pydantic import Field


class LettersConfig(BaseEnvConfig):
    letters: str = Field("abcdefgh", description="Each letter is a task.")


class LettersEnv(BaseEnv):
    """Write the letter of the prompt again and again."""

    name = "atropos_letters"
    env_config_cls = LettersConfig

    @classmethod
    def config_init(cls):
        return LettersConfig(group_size=8), APIServerConfig(model_name="unset")

    async def setup(self):
        self.percent_correct = None
        self.turn = random.randrange(8)  # noqa: S311

    async def get_next_item(self):
        self.turn += 1
        return self.config.letters[self.turn % len(self.config.letters)]

    async def collect_trajectories(self, item):
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            await managed.completion(prompt=f"{item}>", n=self.config.group_size, max_tokens=8, temperature=1.0)
            nodes = managed.get_state()["nodes"]
        group = ScoredDataGroup(tokens=[], masks=[], scores=[], inference_logprobs=[])
        for node in nodes:
            answer = self.tokenizer.decode([token for token in node.masked_tokens if token != -100])
            group["tokens"].append(node.tokens)
            group["masks"].append(node.masked_tokens)
            group["inference_logprobs"].append(node.logprobs)
            group["scores"].append(answer[:8].count(item) / 8)
        return group, []

    async def evaluate(self, *args, **kwargs):
        self.percent_correct = 0.75
        await self.evaluate_log({"accuracy": 0.5, "model": "not a number"})

    async def wandb_log(self, wandb_metrics=None):
        wandb_metrics = wandb_metrics or {}
        if self.percent_correct is not None:
            wandb_metrics["eval/percent_correct"] = self.percent_correct
            self.percent_correct = None
        await super().wandb_log(wandb_metrics)


if __name__ == "__main__":
    LettersEnv.cli()
