"""Conversations of other libraries' agents: kept until they are collected, up to a limit."""

from typing import Any

import pytest

from clotho_environment.sdk import recorder
from clotho_environment.sdk.completion import Completion
from clotho_environment.sdk.recorder import Recorder


def turn(text: str) -> Completion:
    return Completion(text=text, message={"role": "assistant", "content": text}, tokens=(1,), prompt_tokens=(2,))


def test_conversations_that_are_never_collected_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_SESSIONS", 2)
    client: Any = None
    recording = Recorder(client)
    for session in ("first", "second", "first", "third"):
        recording._remember(session, turn(session))
    assert [len(recording.take(session).turns) for session in ("first", "second", "third")] == [2, 0, 1]
