"""A conversation reads the same to the policy, be it written by its own template or by the one made for Ollama."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers.utils.chat_template_utils import render_jinja_template

from clotho_trainer.export.modelfile import Conversation, Render, conversation
from clotho_trainer.model import tiny

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
START = "<s>"
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": 'What is "1 + 2"?\nSay {{ it }}.'}
ANSWER = {"role": "assistant", "content": "Three."}
AGAIN = {"role": "user", "content": "And 2 + 2?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}],
}
RESULT = {"role": "tool", "content": "3"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
    }
]
TALKS = [[USER], [SYSTEM, USER], [USER, ANSWER, AGAIN], [SYSTEM, USER, ANSWER, AGAIN]]
TOOL_TALKS = [[USER], [SYSTEM, USER], [SYSTEM, USER, CALL, RESULT], [USER, CALL, RESULT, RESULT, ANSWER, AGAIN]]
MISTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}[INST] {{ (system if loop.first else '') + m.content }} [/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)


def renderer(template: str, tools: list[dict[str, Any]] | None = None) -> Render:
    def render(messages: list[dict[str, str]]) -> str:
        texts, _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=template,
            add_generation_prompt=True,
            bos_token=START,
            eos_token="</s>",
        )
        return str(texts[0]).removeprefix(START)

    return render


def template(family: str) -> str:
    if family == "tiny":
        return str(tiny.make_tokenizer().chat_template)
    return MISTRAL if family == "mistral" else (TEMPLATES / f"{family}.jinja").read_text()


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if compiler is None:
        pytest.skip("Ollama's templates are Go's, and there is no Go compiler on this machine")
    program = tmp_path_factory.mktemp("go") / "render"
    source = Path(__file__).with_name("render.go")
    subprocess.run([compiler, "build", "-o", str(program), str(source)], check=True, timeout=280)
    return program


def as_go(talk: list[dict[str, Any]], made: Conversation, tools: list[dict[str, Any]]) -> dict[str, Any]:
    system = [message["content"] for message in talk if message["role"] == "system"]
    messages = [
        {
            "Role": message["role"],
            "Content": message["content"],
            "ToolCalls": [
                {"Function": each["function"] | {"Arguments": json.dumps(each["function"]["arguments"])}}
                for each in message.get("tool_calls", ())
            ],
        }
        for message in talk
    ]
    for message in messages:
        for each in message["ToolCalls"]:
            del each["Function"]["arguments"]
    values: dict[str, Any] = {"Messages": messages, "Tools": list(map(json.dumps, tools))}
    values["System"] = system[0] if system else made.system
    return {"Template": made.template, "Values": values}


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "llama3", "mistral", "gemma", "phi3", "tiny"])
def test_ollama_renders_conversations_like_the_chat_template(family: str, go: Path) -> None:
    source = template(family)
    made = conversation("", set(), None, source, renderer(source))
    cases: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [(talk, []) for talk in TALKS]
    if family.startswith("qwen"):
        cases += [(talk, TOOLS) for talk in TOOL_TALKS]
    if family == "gemma":  # has no system prompt
        cases = [(talk, tools) for talk, tools in cases if talk[0] is not SYSTEM]
    expected = [renderer(source, tools or None)(talk) for talk, tools in cases]
    jobs = [as_go(talk, made, tools) for talk, tools in cases]
    done = subprocess.run([str(go)], input=json.dumps(jobs), capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == expected


def test_gemma_has_the_system_prompt_in_its_first_user_message(go: Path) -> None:
    source = template("gemma")
    made = conversation("gemma", set(), None, source, renderer(source))
    jobs = [as_go([SYSTEM, AGAIN], made, [])]
    done = subprocess.run([str(go)], input=json.dumps(jobs), capture_output=True, text=True, check=True, timeout=60)
    folded = {"role": "user", "content": f"{SYSTEM['content']}\n\n{AGAIN['content']}"}
    assert json.loads(done.stdout) == [renderer(source)([folded])]
