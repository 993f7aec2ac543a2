"""An Atropos environment: write the letter of the prompt again and again. Nothing in it refers to Clotho."""

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup
from pydantic import Field

LENGTH = 8


class LettersConfig(BaseEnvConfig):
    letters: str = Field("abcdefgh", description="Each letter is a task.")


class LettersEnv(BaseEnv):
    """Write the letter of the prompt again and again; the score is the fraction of letters that are right."""

    name = "letters"
    env_config_cls = LettersConfig

    @classmethod
    def config_init(cls):
        return LettersConfig(group_size=8), APIServerConfig(model_name="policy")

    async def setup(self):
        self.position = 0

    async def get_next_item(self):
        self.position += 1
        return self.config.letters[self.position % len(self.config.letters)]

    async def collect_trajectories(self, item):
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            await managed.completion(prompt=f"{item}>", n=self.config.group_size, max_tokens=LENGTH, temperature=1.0)
            nodes = managed.get_state()["nodes"]
        group = ScoredDataGroup(tokens=[], masks=[], scores=[], inference_logprobs=[])
        for node in nodes:
            answer = self.tokenizer.decode([token for token in node.masked_tokens if token != -100])
            group["tokens"].append(node.tokens)
            group["masks"].append(node.masked_tokens)
            group["inference_logprobs"].append(node.logprobs)
            group["scores"].append(answer[:LENGTH].count(item) / LENGTH)
        return group, []

    async def evaluate(self, *args, **kwargs):
        return None


if __name__ == "__main__":
    LettersEnv.cli()
