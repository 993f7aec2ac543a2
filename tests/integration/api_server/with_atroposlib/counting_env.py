"""A small environment for an unchanged atroposlib, run by its Python: `counting_env.py URL TOKENIZER_FOLDER`."""

import asyncio
import itertools
import sys

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast


class CountingEnv(BaseEnv):
    """Every group carries its number in its tokens; a third of them are large enough to be sent compressed."""

    name = "counting"

    async def setup(self):
        self.numbers = itertools.count(1)

    async def get_next_item(self):
        return next(self.numbers)

    async def evaluate(self, *args, **kwargs):
        pass

    async def collect_trajectories(self, item):
        width = 600 if item % 3 == 0 else 3
        rows = [[item] * width for _ in range(self.config.group_size)]
        scores = [float(i % 2) for i in range(self.config.group_size)]
        logprobs = [[-0.5] * width for _ in rows]
        return {"tokens": rows, "masks": rows, "scores": scores, "inference_logprobs": logprobs}, []


async def main(url, folder):
    vocabulary = {"[UNK]": 0, "a": 1}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="[UNK]")), unk_token="[UNK]"
    ).save_pretrained(folder)
    config = BaseEnvConfig(
        group_size=4,
        max_num_workers=4,
        tokenizer_name=folder,
        rollout_server_url=url,
        use_wandb=False,
        wandb_name="counting",
        total_steps=3,
        max_token_length=1024,
        max_batches_offpolicy=2,
    )
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", model_name="none", api_key="x", health_check=False)
    await CountingEnv(config, [server]).env_manager()


asyncio.run(main(*sys.argv[1:]))
