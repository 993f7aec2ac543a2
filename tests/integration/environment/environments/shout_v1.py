"""A taskset of verifiers, as its documentation teaches them."""

from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["ShoutTaskset"]


class ShoutData(vf.TaskData):
    word: str


class ShoutTask(vf.Task[ShoutData]):
    @vf.reward(weight=1.0)
    async def repeats_the_word(self, trace: vf.Trace) -> float:
        return float(self.data.word in (trace.last_reply or ""))


class ShoutConfig(vf.TasksetConfig):
    words: str = "ab cd"


class ShoutTaskset(vf.Taskset[ShoutTask, ShoutConfig]):
    def load(self) -> Iterable[ShoutTask]:
        for word in self.config.words.split():
            yield ShoutTask(ShoutData(prompt=f"say {word}", system_prompt="be loud", word=word), self.config.task)
