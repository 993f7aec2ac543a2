"""What the policy answered, with the tokens, log-probabilities and policy version that training needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import Struct

from clotho_contract.untrusted import decode
from clotho_environment.sdk.group import Sequence

Message = Mapping[str, Any]
"""A chat message as OpenAI writes it: `{"role": "user", "content": "..."}`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of the policy. Authors read `text`; the rest is for the trainer, `prompt` for display."""

    text: str
    finish_reason: str = "stop"
    prompt_tokens: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    policy_version: int | None = None
    message: Message = field(default_factory=dict)
    prompt: str = ""

    @property
    def is_truncated(self) -> bool:
        """Whether the token limit ended it, rather than the policy."""
        return self.finish_reason == "length"

    @property
    def sequence(self) -> Sequence:
        prompt, answer = len(self.prompt_tokens), len(self.tokens)
        return Sequence(
            tokens=self.prompt_tokens + self.tokens,
            trained=(False,) * prompt + (True,) * answer,
            logprobs=(0.0,) * prompt + self.logprobs,
            policy_version=self.policy_version,
            is_truncated=self.is_truncated,
        )


class AnswerError(ValueError):
    """The inference server's answer is not what the protocol promises."""


class _ChatLogprob(Struct):
    logprob: float


class _Logprobs(Struct):
    content: list[_ChatLogprob] | None = None  # chat
    token_logprobs: list[float | None] | None = None  # plain completions


class _Choice(Struct):
    finish_reason: str | None = None
    text: str | None = None
    message: dict[str, Any] | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    logprobs: _Logprobs | None = None
    policy_version: int | None = None


class _OpenAiAnswer(Struct):
    choices: list[_Choice]
    prompt_token_ids: tuple[int, ...] | None = None


class _GenerateMeta(Struct):
    output_logprobs: tuple[float, ...] | None = None
    output_token_logprobs: list[tuple[float, int, str | None]] = []  # of servers that have no others
    finish_reason: str | dict[str, Any] | None = None
    policy_version: int | None = None


class _GenerateAnswer(Struct):
    text: str
    meta_info: _GenerateMeta
    output_ids: tuple[int, ...] = ()

    @property
    def sampled(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Tokens and log-probabilities."""
        meta = self.meta_info
        if meta.output_logprobs is None:
            pairs = meta.output_token_logprobs
            logprobs, tokens, _ = zip(*pairs, strict=True) if pairs else ((), (), ())
            return tokens, logprobs
        if len(meta.output_logprobs) != len(self.output_ids):
            raise AnswerError(
                f"the inference server sent {len(meta.output_logprobs)} log-probabilities for "
                f"{len(self.output_ids)} tokens"
            )
        return self.output_ids, meta.output_logprobs


def read_openai(body: bytes, version: int | None, *, want_tokens: bool) -> list[Completion]:
    """`/v1/chat/completions` and `/v1/completions`; `version` holds for answers that do not name their own."""
    answer = _decode(body, _OpenAiAnswer)
    return [_read_choice(choice, answer, version, want_tokens=want_tokens) for choice in answer.choices]


def read_generate(body: bytes, prompt: tuple[int, ...], version: int | None) -> list[Completion]:
    """SGLang's `/generate`: one object for one sample, a list for several."""
    answers = _decode(body, list[_GenerateAnswer] if body.lstrip()[:1] == b"[" else _GenerateAnswer)
    return [_generated(each, prompt, version) for each in (answers if isinstance(answers, list) else [answers])]


def _generated(answer: _GenerateAnswer, prompt: tuple[int, ...], version: int | None) -> Completion:
    meta, (tokens, logprobs) = answer.meta_info, answer.sampled
    return Completion(
        text=answer.text,
        finish_reason=_finish_reason(meta.finish_reason),
        prompt_tokens=prompt,
        tokens=tokens,
        logprobs=logprobs,
        policy_version=version if meta.policy_version is None else meta.policy_version,
    )


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return decode(body, kind)
    except msgspec.MsgspecError as error:
        raise AnswerError(f"the inference server's answer cannot be read: {error}") from error


def _read_choice(choice: _Choice, answer: _OpenAiAnswer, version: int | None, *, want_tokens: bool) -> Completion:
    message = choice.message or {"role": "assistant", "content": choice.text or ""}
    content = message.get("content")
    completion = Completion(
        text=content if isinstance(content, str) else "",
        finish_reason=choice.finish_reason or "stop",
        policy_version=version if choice.policy_version is None else choice.policy_version,
        message=message,
    )
    if not want_tokens:
        return completion
    prompt = choice.prompt_token_ids or answer.prompt_token_ids
    logprobs = _logprobs(choice.logprobs)
    if not prompt or choice.token_ids is None or len(logprobs) != len(choice.token_ids):
        raise AnswerError(
            "the inference server sent no token ids or log-probabilities, which training needs; "
            "it must honour return_token_ids and logprobs, as the Clotho trainer and vLLM do"
        )
    return replace(completion, prompt_tokens=prompt, tokens=choice.token_ids, logprobs=logprobs)


def _logprobs(logprobs: _Logprobs | None) -> tuple[float, ...]:
    if logprobs is None:
        return ()
    if logprobs.content is not None:
        return tuple(entry.logprob for entry in logprobs.content)
    return tuple(value for value in logprobs.token_logprobs or () if value is not None)


def _finish_reason(reason: str | dict[str, Any] | None) -> str:
    if isinstance(reason, dict):
        reason = reason.get("type")
    return reason if isinstance(reason, str) else "stop"
