"""Conversations as tokens, through the model's own chat template; and whether that template supports tools."""

from collections.abc import Mapping, Sequence
from typing import Any

from clotho_trainer.failures import TrainerError
from clotho_trainer.model.tool_calls import ToolCall, parse
from clotho_trainer.rollouts.inline.records import Message

_MARK = "clothomark"  # found again in rendered text; plain letters survive every template
_RESULT = "clothoresult"


class Chat:
    def __init__(
        self,
        tokenizer: Any,
        end_tokens: frozenset[int],
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._ends = [str(tokenizer.decode([token])) for token in sorted(end_tokens)]
        self._tools = [dict(tool) for tool in tools]
        self._arguments = dict(arguments or {})

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        if self._tokenizer.chat_template is None:
            return self.tokens(_plain(messages))
        return self.tokens(self._render(messages))

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=self._tokenizer.chat_template is None)["input_ids"]
        return ids

    def after_call(self, names: Sequence[str], results: Sequence[str]) -> list[int]:
        """What stands between the policy's call and its next turn. The call itself stays as it was sampled."""
        calls = [{"name": name, "arguments": {"argument": _MARK}} for name in names]
        text = self._render(_exchange(calls, results))
        suffix = self._behind_turn(text, text.rfind(_MARK))
        if suffix is None:
            raise TrainerError("InvalidConfig", _UNENDED)
        ids: list[int] = self._tokenizer(suffix, add_special_tokens=False)["input_ids"]
        return ids

    def check_tools(self, model: str) -> None:
        """Refuse, before anything is sampled, a template that would lose tools, calls or results."""
        if problem := self._problem_with_tools():
            advice = "Qwen2.5 and Qwen3 have templates that do"
            raise TrainerError("InvalidConfig", f"inline.tools: the chat template of {model} {problem}; {advice}")

    def _problem_with_tools(self) -> str | None:
        if self._tokenizer.chat_template is None:
            return "is missing"
        name = str(self._tools[0]["function"]["name"])
        call = {"name": name, "arguments": {"argument": _MARK}}
        try:
            opening = self._render([{"role": "user", "content": "hello"}])
            text = self._render(_exchange([call], [_RESULT]))
        except Exception as error:  # templates are programs: they may raise anything
            return f"refuses conversations with tools ({str(error).splitlines()[0] if str(error) else error!r})"
        missing = [tool["function"]["name"] for tool in self._tools if tool["function"]["name"] not in opening]
        if missing:
            return f"leaves out the tool {missing[0]}"
        if _MARK not in text:
            return "leaves out what the model called"
        turn_end = self._turn_end(text, text.rfind(_MARK))
        if turn_end is None:
            return "does not end the model's turn after a tool call"
        if parse(text[: turn_end[0]])[-1:] != [ToolCall(name, {"argument": _MARK})]:
            return "does not write calls as <tool_call>{...}</tool_call>, the form that is read back"
        if _RESULT not in text[turn_end[1] :]:
            return "leaves out what the tool answered"
        return None

    def _behind_turn(self, text: str, start: int) -> str | None:
        end = self._turn_end(text, start)
        return None if end is None else text[end[1] :]

    def _turn_end(self, text: str, start: int) -> tuple[int, int] | None:
        """Where the first end token after `start` begins and ends."""
        found = [(place, place + len(end)) for end in self._ends if end and (place := text.find(end, start)) >= 0]
        return min(found, default=None)

    def _render(self, messages: Sequence[Message]) -> str:
        rendered: str = self._tokenizer.apply_chat_template(
            list(messages),
            tools=self._tools or None,
            add_generation_prompt=True,
            tokenize=False,
            **self._arguments,
        )
        return rendered


_UNENDED = "inline.tools: the chat template does not end the model's turn after a tool call"


def _exchange(calls: Sequence[Mapping[str, Any]], results: Sequence[str]) -> list[Message]:
    made: list[dict[str, Any]] = [
        {"id": f"call{index:05d}", "type": "function", "function": call} for index, call in enumerate(calls)
    ]
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result}
        for call, result in zip(made, results, strict=True)
    ]
    return [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": made},
        *answers,
    ]


def _plain(messages: Sequence[Message]) -> str:
    if len(messages) > 1:
        raise TrainerError(
            "InvalidConfig",
            "the model has no chat template: it can be given texts only, without inline.instructions or conversations",
        )
    return str(messages[0]["content"])
