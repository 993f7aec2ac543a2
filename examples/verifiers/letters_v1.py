"""A taskset of verifiers: write the letter of the prompt again and again. Nothing in it refers to Clotho."""

from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["LettersTaskset"]

LENGTH = 8


class LetterData(vf.TaskData):
    letter: str


class LetterTask(vf.Task[LetterData]):
    @vf.reward(weight=1.0)
    async def share_of_the_letter(self, trace: vf.Trace) -> float:
        return (trace.last_reply or "")[:LENGTH].count(self.data.letter) / LENGTH


class LettersConfig(vf.TasksetConfig):
    letters: str = "abcdefgh"


class LettersTaskset(vf.Taskset[LetterTask, LettersConfig]):
    def load(self) -> Iterable[LetterTask]:
        for letter in self.config.letters:
            yield LetterTask(LetterData(prompt=f"{letter}>", letter=letter), self.config.task)
