"""What Ollama needs beside the weights: how a conversation is written, and where an answer ends. Pure."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from clotho_trainer.failures import TrainerError

Message = dict[str, str]
Render = Callable[[list[Message]], str]
"""A conversation as the policy was trained to read it, ready for its answer. Raises for what it cannot write."""

_STOPS: Final[dict[str, tuple[str, ...]]] = {
    "qwen2": ("<|im_start|>", "<|im_end|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>"),
    "llama": ("<|eot_id|>",),
    "mistral": ("</s>",),
    "gemma": ("<end_of_turn>",),
    "gemma2": ("<end_of_turn>",),
    "phi": ("<|end|>",),
    "phi3": ("<|end|>",),
}
_SYSTEM, _USER, _ANSWER, _AGAIN = (f"\u2402{name}\u2403" for name in ("system", "user", "answer", "again"))
_QWEN_SYSTEM = re.compile(r"^<\|im_start\|>system\n(.*?)<\|im_end\|>\n", re.DOTALL)

# Qwen's way of offering tools, in the words that its own template uses. Ollama's json writes them without spaces, and
# it takes the first text under `if .ToolCalls` for the mark by which it finds calls in an answer.
_QWEN_TOOLS: Final = """\
{{- if or .System .Tools }}<|im_start|>system
{{ if .System }}{{ .System }}{{ if .Tools }}

{{ end }}{{ end }}
{{- if .Tools }}# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>{{ range .Tools }}
{{ json . }}{{ end }}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>{{ end }}<|im_end|>
{{ end }}
{{- $previous := "" }}
{{- range .Messages }}
{{- if and (eq $previous "tool") (ne .Role "tool") }}<|im_end|>
{{ end }}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ .Content }}{{ $content := .Content }}
{{- if .ToolCalls }}{{ range $index, $call := .ToolCalls }}{{ if or $index $content }}
<tool_call>{{ else }}<tool_call>{{ end }}
{"name": "{{ $call.Function.Name }}", "arguments": {{ $call.Function.Arguments }}}
</tool_call>{{ end }}{{ end }}<|im_end|>
{{ else if eq .Role "tool" }}{{ if ne $previous "tool" }}<|im_start|>user{{ end }}
<tool_response>
{{ .Content }}
</tool_response>{{ end }}
{{- $previous = .Role }}
{{- end }}
{{- if eq $previous "tool" }}<|im_end|>
{{ end }}<|im_start|>assistant
"""


class Conversation(Struct, frozen=True, kw_only=True):
    template: str  # in the language of Go's text/template
    stops: tuple[str, ...]
    system: str = ""  # the template's own system prompt


def conversation(
    model_type: str,
    vocabulary: set[str],
    end: str | None,
    template: str | None,
    render: Render,
    *,
    instructions: str = "",
) -> Conversation:
    """`template` is the tokenizer's own, which `render` applies; without one, prompts are passed on as they are."""
    known = tuple(stop for stop in _STOPS.get(model_type, ()) if stop in vocabulary)
    stops = known or ((end,) if end else ())
    if not template:
        return Conversation(template="{{ .Prompt }}", stops=stops, system=instructions)
    if "<|im_start|>" in template and "<tool_call>" in template:
        default = _QWEN_SYSTEM.match(render([{"role": "user", "content": _USER}]))
        return Conversation(template=_QWEN_TOOLS, stops=stops, system=instructions or (default[1] if default else ""))
    return Conversation(template=_derived(render), stops=stops, system=instructions)


def modelfile(weights: str, talk: Conversation) -> str:
    lines = [f"FROM ./{weights}", _command("TEMPLATE", talk.template)]
    if talk.system:
        lines.append(_command("SYSTEM", talk.system))
    lines.extend(_command("PARAMETER stop", stop) for stop in talk.stops)
    return "\n".join(lines) + "\n"


def _command(name: str, text: str) -> str:
    if fits_modelfile(text):
        return f'{name} """{text}"""'
    return f"# {name} is left out: a Modelfile cannot hold its text. Registration over the API carries it."


def fits_modelfile(text: str) -> bool:
    """A Modelfile has no escapes: it drops invisible characters, and a line that ends in quotation marks ends it."""
    *inner, _ = re.split("[\r\n]", text)
    return not any(line.rstrip().endswith('"""') for line in inner) and all(
        character.isprintable() or character in "\n\r\t" for character in text
    )


def _derived(render: Render) -> str:
    """Go's words for any template: what stands between two messages is seen by rendering marked ones."""
    user, answer, again = (
        {"role": "user", "content": _USER},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _AGAIN},
    )
    first, to_answer, to_user, to_new_answer = _between(render([user, answer, again]), (_USER, _ANSWER, _AGAIN))
    try:
        system = {"role": "system", "content": _SYSTEM}
        to_system, system_to_user, _ = _between(render([system, user]), (_SYSTEM, _USER))
    except Exception:  # Gemma's template has no such role: its makers put the words before the first question
        to_system, system_to_user = first, "\n\n"
    return "".join(
        [
            '{{- $previous := "" }}{{ range .Messages }}',
            f'{{{{- if eq .Role "system" }}}}{_literal(to_system)}',
            f'{{{{- else if eq .Role "assistant" }}}}{_literal(to_answer)}',
            f'{{{{- else if eq $previous "" }}}}{_literal(first)}',
            f'{{{{- else if eq $previous "system" }}}}{_literal(system_to_user)}',
            f"{{{{- else }}}}{_literal(to_user)}",
            "{{- end }}{{ .Content }}{{ $previous = .Role }}",
            f'{{{{- end }}}}{{{{ if ne $previous "assistant" }}}}{_literal(to_new_answer)}{{{{ end }}}}',
        ]
    )


def _between(text: str, marks: Sequence[str]) -> list[str]:
    pieces = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found:
            raise TrainerError("InvalidConfig", "the model's chat template leaves out messages; use safetensors")
        pieces.append(before)
    return [*pieces, text]


def _literal(text: str) -> str:
    """A string of Go's. JSON's differ in pairs of surrogates, so what a Modelfile drops is escaped here."""
    quoted = json.dumps(text, ensure_ascii=False)
    visible = "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
    return f"{{{{ {visible} }}}}" if text else ""
