"""Reads tool calls as Qwen2.5, Qwen3 and other Hermes-style models write them: <tool_call>{"name", "arguments"}."""

import json
import re
from dataclasses import dataclass
from typing import Any

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_THOUGHT_ENDS = "</think>"
_THOUGHT_BEGINS = "<think>"


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Malformed:
    """Meant as a call, but not one; `problem` goes back to the policy."""

    problem: str


def parse(text: str) -> list[ToolCall | Malformed]:
    """Calls that a thought only considers are not calls."""
    return [_read(found.group(1)) for found in _CALL.finditer(without_thought(text))]


def without_thought(text: str) -> str:
    """What follows the <think> block; nothing when it was never closed."""
    _, end, rest = text.rpartition(_THOUGHT_ENDS)
    if end:
        return rest
    return text.partition(_THOUGHT_BEGINS)[0]


def content_of(text: str) -> str:
    """The text beside the calls."""
    return _CALL.sub("", text).strip()


def _read(body: str) -> ToolCall | Malformed:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError) as error:
        return Malformed(f"the tool call is not JSON: {error}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return Malformed("a tool call is an object with name and arguments")
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return Malformed(f"the arguments of {call['name']} are not an object")
    return ToolCall(call["name"], arguments)
