"""Turns are joined into one training sequence exactly where the tokens really continue one another."""

from clotho_environment import Completion, Conversation
from clotho_environment.sdk.conversation import stitch


def turn(prompt, answer, version=1, text="answer"):
    return Completion(
        text=text,
        prompt_tokens=prompt,
        tokens=answer,
        logprobs=(-0.5,) * len(answer),
        policy_version=version,
        message={"role": "assistant", "content": text},
    )


def test_continued_turns_become_one_sequence_with_environment_tokens_masked():
    joined = stitch([turn((1, 2), (3,), version=4), turn((1, 2, 3, 8, 9), (5, 6), version=5)])
    assert joined.tokens == (1, 2, 3, 8, 9, 5, 6)
    assert joined.trained == (False, False, True, False, False, True, True)
    assert joined.logprobs == (0.0, 0.0, -0.5, 0.0, 0.0, -0.5, -0.5)
    assert joined.policy_version == 4


def test_a_template_that_rewrites_history_starts_a_new_sequence():
    joined = stitch([turn((1, 2), (3, 4)), turn((1, 7), (5,)), turn((1, 7, 5, 9), (6,))])
    assert joined.tokens == (1, 7, 5, 9, 6)
    assert joined.trained == (False, False, True, False, True)


def test_a_conversation_without_turns_has_nothing_to_train():
    assert stitch([]).tokens == ()


async def test_a_conversation_keeps_messages_and_turns():
    heard = []

    async def reply(messages):
        heard.append(list(messages))
        prompt = (1,) if len(heard) == 1 else (1, 2, 3)
        return turn(prompt, (2,), text=f"reply {len(heard)}")

    conversation = Conversation(reply, [{"role": "user", "content": "start"}])
    assert conversation.text == ""
    await conversation.reply()
    conversation.say("42", role="tool", tool_call_id="call-1")
    await conversation.reply()
    assert [m["content"] for m in heard[1]] == ["start", "reply 1", "42"]
    assert heard[1][2] == {"role": "tool", "content": "42", "tool_call_id": "call-1"}
    assert conversation.text == "reply 2"
    assert conversation.sequence.trained == (False, True, False, True)
