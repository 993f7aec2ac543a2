"""Tools from functions in any docstring style, from schemas and from objects; and the calls that models write."""

import json
from typing import Any, Literal

import pytest

from clotho_trainer.failures import TrainerError
from clotho_trainer.model.tool_calls import Malformed, ToolCall, content_of, parse, without_thought
from clotho_trainer.rollouts.inline.records import Record
from clotho_trainer.rollouts.inline.rewards import Scores
from clotho_trainer.rollouts.inline.rollouts import Trajectory
from clotho_trainer.rollouts.inline.source import figures_of
from clotho_trainer.rollouts.inline.tools import from_function, methods_of, tools_from


def google(city: str, days: int = 3) -> str:
    """Forecast the weather.

    Args:
        city (str): where
        days: how far ahead

    Returns:
        a sentence
    """
    return f"{city} {days}"


def numpy(city: str, days: int = 3) -> str:
    """Forecast the weather.

    Parameters
    ----------
    city : str
        where
    days : int, optional
        how far ahead
    """
    return f"{city} {days}"


def sphinx(city: str, days: int = 3) -> str:
    """Forecast the weather.

    :param city: where
    :param int days: how far ahead
    """
    return f"{city} {days}"


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_every_docstring_style_describes_the_same_tool(function: Any) -> None:
    body = from_function(function, "tools").schema["function"]
    assert body["description"] == "Forecast the weather."
    properties = body["parameters"]["properties"]
    assert properties["city"] == {"type": "string", "description": "where"}
    assert (properties["days"]["type"], properties["days"]["description"]) == ("integer", "how far ahead")
    assert body["parameters"]["required"] == ["city"]


def test_a_function_without_a_docstring_is_a_tool() -> None:
    def pick(side: Literal["left", "right"], thing: Any) -> None: ...

    properties = from_function(pick, "tools").schema["function"]["parameters"]["properties"]
    assert sorted(properties["side"]["enum"]) == ["left", "right"]
    assert properties["thing"] == {}


@pytest.mark.parametrize("is_wrapped", [True, False])
async def test_a_schema_with_a_callable(is_wrapped: bool) -> None:
    body = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    schema = {"type": "function", "function": body} if is_wrapped else body
    (tool,) = tools_from([{"schema": schema, "function": lambda a: a + 1}], "tools")
    assert tool.schema["function"]["name"] == "add"
    assert await tool.call({"a": 1}) == "2"


async def test_arguments_become_what_the_function_declares() -> None:
    async def repeat(text: str, times: int) -> dict[str, str]:
        return {"text": text * times}

    assert json.loads(await from_function(repeat, "tools").call({"text": "a", "times": "3"})) == {"text": "aaa"}


@pytest.mark.parametrize("arguments", [{"city": "Rome", "unknown": 1}, {}, {"city": 7}])
async def test_wrong_arguments_raise_before_the_call(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        await from_function(google, "tools").call(arguments)


def test_the_public_methods_of_an_object_are_its_tools() -> None:
    class Game:
        score = 3

        def reset(self, **record: Any) -> None: ...

        def get_reward(self) -> float:
            return 0.0

        def move(self, direction: str) -> str:
            """Take a step."""
            return direction

        def _hidden(self) -> None: ...

    assert [tool.name for tool in methods_of(Game(), "tools")] == ["move"]


@pytest.mark.parametrize("given", [3, "text", [None], {"schema": {}, "function": print}])
def test_objects_that_are_not_tools_are_refused(given: Any) -> None:
    with pytest.raises(TrainerError, match="tools: "):
        tools_from(given, "tools")


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no call", []),
        (CALL, [ToolCall("add", {"a": 1})]),
        (f"I will add.\n{CALL}\n{CALL}", [ToolCall("add", {"a": 1})] * 2),
        (CALL.removesuffix("\n</tool_call>"), [ToolCall("add", {"a": 1})]),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [ToolCall("add", {"a": 1})]),
        ('<tool_call>{"name": "now"}</tool_call>', [ToolCall("now", {})]),
        (f"<think>should I? {CALL}</think>\n\nno", []),
        (f"<think>yes</think>\n\n{CALL}", [ToolCall("add", {"a": 1})]),
        (f"<think>{CALL}", []),
        ("<tool_call>[1]</tool_call>", [Malformed("a tool call is an object with name and arguments")]),
        ('<tool_call>{"name": "a", "arguments": 3}</tool_call>', [Malformed("the arguments of a are not an object")]),
    ],
)
def test_tool_calls_are_read(text: str, expected: list[Any]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("body", ["add(1)", "[" * 10_000 + "]" * 10_000])
def test_a_call_that_is_not_json_is_malformed(body: str) -> None:
    (call,) = parse(f"<tool_call>{body}</tool_call>")
    assert isinstance(call, Malformed)
    assert call.problem.startswith("the tool call is not JSON")


def test_arguments_nested_too_deeply_are_malformed() -> None:
    (call,) = parse('<tool_call>{"name": "a", "arguments": "' + "[" * 10_000 + '"}</tool_call>')
    assert call == Malformed("the arguments of a are not an object")


def test_calls_and_thoughts_are_removed_from_the_text() -> None:
    assert content_of(f"So:\n{CALL}") == "So:"
    assert without_thought("<think>hm</think> 4") == " 4"
    assert without_thought("4") == "4"


@pytest.mark.parametrize(
    ("has_tools", "calls", "expected"), [(True, (2, 1), 1.5), (True, (0, 0), 0.0), (False, (0, 0), None)]
)
def test_calls_are_counted_where_there_are_tools(
    has_tools: bool, calls: tuple[int, ...], expected: float | None
) -> None:
    record = Record(name="line 1", messages=(), expected="4", fields={})
    rollouts = [Trajectory([1], limit=8, calls=each) for each in calls]
    figures = figures_of([(record, rollouts, Scores([0.0, 0.0], {}))], has_tools=has_tools)
    assert figures.get("tools/calls_per_rollout") == expected
