"""Chat messages as OpenAI sends them, rendered by the model's own template off the event loop, within a time limit."""

import asyncio
import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clotho_trainer.inference.requests import BadRequestError, ChatRequest
from clotho_trainer.model.tool_calls import Malformed, content_of, parse

RENDER_SECONDS = 10.0

_RENDERERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="chat-template")


async def render(tokenizer: Any, model: str, body: ChatRequest, limit_seconds: float = RENDER_SECONDS) -> str:
    if tokenizer.chat_template is None:
        raise BadRequestError(
            f"the tokenizer of {model} has no chat template; use /v1/completions or /generate, or a model made for chat"
        )
    messages = [_plain(message, index) for index, message in enumerate(body.messages)]
    if not messages:
        raise BadRequestError("messages is empty")
    variables = _variables(tokenizer, body.chat_template_kwargs or {})
    tools = None if body.tool_choice == "none" else body.tools

    def apply() -> str:
        text: str = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=False, **variables
        )
        return text

    rendering = asyncio.get_running_loop().run_in_executor(_RENDERERS, apply)
    try:
        return await asyncio.wait_for(rendering, limit_seconds)
    except TimeoutError as error:
        raise BadRequestError(f"the chat template did not finish within {limit_seconds:.0f} s") from error
    except Exception as error:  # templates are programs: they raise anything
        raise BadRequestError(f"the chat template refuses these messages: {error}") from error


def answer_message(text: str, body: ChatRequest) -> dict[str, Any]:
    """The assistant's message, with the tool calls in it where the request has tools."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if not body.tools or body.tool_choice == "none":
        return message
    calls = [call for call in parse(text) if not isinstance(call, Malformed)]
    if not calls:
        return message
    if body.parallel_tool_calls is False:
        calls = calls[:1]
    entries = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for index, call in enumerate(calls)
    ]
    return message | {"content": content_of(text) or None, "tool_calls": entries}


def _variables(tokenizer: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Variables of the template. The renderer's own arguments, a template among them, are not the caller's."""
    own = inspect.signature(tokenizer.apply_chat_template).parameters.values()
    reserved = {parameter.name for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD}
    if refused := sorted(reserved & given.keys()):
        raise BadRequestError(f"chat_template_kwargs.{refused[0]} is not accepted: it may only set template variables")
    return given


def _plain(message: dict[str, Any], index: int) -> dict[str, Any]:
    """Text content as one string, and arguments of tool calls as objects: what templates expect."""
    if not isinstance(message.get("role"), str):
        raise BadRequestError(f"messages[{index}].role is missing")
    plain = dict(message)
    if "content" in plain:
        plain["content"] = _text(plain["content"], index)
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_with_arguments(call, index) for call in calls]
    return plain


def _text(content: Any, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise BadRequestError(f"messages[{index}].content is neither a text nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        text = part.get("text") if isinstance(part, dict) else part
        if kind != "text":
            raise BadRequestError(f"messages[{index}].content: parts of type {kind} are not supported, only text")
        if not isinstance(text, str):
            raise BadRequestError(f"messages[{index}].content: a text part has no text")
        texts.append(text)
    return "\n".join(texts)


def _with_arguments(call: Any, index: int) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"messages[{index}].tool_calls: arguments are not JSON: {error}") from error
    return call | {"function": function | {"arguments": arguments}}
