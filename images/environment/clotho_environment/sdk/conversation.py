"""Several turns with the policy, kept as the one token sequence that was really sampled."""

from collections.abc import Awaitable, Callable, Sequence

from clotho_environment.sdk.completion import Completion, Message
from clotho_environment.sdk.group import Sequence as TokenSequence

Reply = Callable[[Sequence[Message]], Awaitable[Completion]]


class Conversation:
    """Ask with `reply()`, answer with `say()`, and put the conversation itself into the `Group`."""

    def __init__(self, reply: Reply, messages: Sequence[Message], turns: Sequence[Completion] = ()) -> None:
        self._reply = reply
        self.messages: list[Message] = list(messages)
        self.turns: list[Completion] = list(turns)

    async def reply(self) -> Completion:
        """The policy's next message, added to the conversation."""
        completion = await self._reply(self.messages)
        self.turns.append(completion)
        self.messages.append(completion.message)
        return completion

    def say(self, content: str, *, role: str = "user", **fields: object) -> None:
        """Add a message that the policy did not write: a user's turn, or a tool's result with `role="tool"`."""
        self.messages.append({"role": role, "content": content, **fields})

    @property
    def text(self) -> str:
        """The policy's last message."""
        return self.turns[-1].text if self.turns else ""

    @property
    def prompt(self) -> str:
        """What the first turn answered, for display."""
        return self.turns[0].prompt if self.turns else ""

    @property
    def sequence(self) -> TokenSequence:
        return stitch(self.turns)


def stitch(turns: Sequence[Completion]) -> TokenSequence:
    """Join turns whose prompts continue one another token by token.

    Some chat templates rewrite history (they drop old reasoning, for example). What such a turn was conditioned on is
    then no longer a prefix, so the sequence starts anew there and the turns before it are context, not training data.
    """
    if not turns:
        return TokenSequence(tokens=(), trained=(), logprobs=())
    joined = turns[0].sequence
    for turn in turns[1:]:
        joined = _continue(joined, turn)
    return joined


def _continue(joined: TokenSequence, turn: Completion) -> TokenSequence:
    known = len(joined.tokens)
    if turn.prompt_tokens[:known] != joined.tokens:
        return turn.sequence
    added = turn.sequence
    versions = [v for v in (joined.policy_version, turn.policy_version) if v is not None]
    return TokenSequence(
        tokens=added.tokens,
        trained=joined.trained + added.trained[known:],
        logprobs=joined.logprobs + added.logprobs[known:],
        policy_version=min(versions, default=None),
        is_truncated=added.is_truncated,
    )
