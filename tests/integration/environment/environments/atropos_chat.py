"""An Atropos environment that tokenizes whole conversations and scores one attempt at a time, as many do."""

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataItem
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer


class ChatEnv(BaseEnv):
    """Repeat the word of the prompt."""

    name = "atropos_chat"

    @classmethod
    def config_init(cls):
        return BaseEnvConfig(group_size=4), [APIServerConfig(model_name="unset")]

    async def setup(self):
        self.turn = 0

    async def get_next_item(self):
        self.turn += 1
        return ("red", "green", "blue")[self.turn % 3]

    async def collect_trajectory(self, item):
        messages = [{"role": "user", "content": item}]
        answer = await self.server.chat_completion(messages=messages, n=1, max_tokens=8)
        text = answer.choices[0].message.content
        tokenized = tokenize_for_trainer(self.tokenizer, [*messages, {"role": "assistant", "content": text}])
        scored = ScoredDataItem(tokens=tokenized["tokens"], masks=tokenized["masks"], scores=float(text == item))
        return scored, []

    async def evaluate(self, *args, **kwargs):
        return None


if __name__ == "__main__":
    ChatEnv.cli()
