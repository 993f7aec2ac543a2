"""A conversation reads the same to the policy, be it written by its own template or by Ollama from our Modelfile."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers.utils.chat_template_utils import render_jinja_template

from clotho_trainer.export.modelfile import Conversation, Render, conversation, modelfile
from clotho_trainer.model import tiny

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
START = "<s>"
Talk = list[dict[str, Any]]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": 'What is "1 + 2"?\nSay {{ it }}.'}
ANSWER = {"role": "assistant", "content": "Three."}
AGAIN = {"role": "user", "content": "And 2 + 2?"}
ARGUMENTS = {"a": 1, "b": 2}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}],
}
CALLED = f'<tool_call>\n{{"name": "add", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
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
def ollama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if compiler is None:
        pytest.skip("Ollama is written in Go, and there is no Go compiler on this machine")
    program = tmp_path_factory.mktemp("go") / "ollama-reads"
    source = Path(__file__).with_name("ollama_reads")
    subprocess.run([compiler, "build", "-o", str(program), "."], cwd=source, check=True, timeout=280)
    return program


def job(made: Conversation, talk: Talk, tools: list[dict[str, Any]] | None = None, answer: str = "") -> dict[str, Any]:
    return {
        "Modelfile": modelfile("model-q8_0.gguf", made),
        "Messages": talk,
        "Tools": tools or [],
        "Answer": answer,
    }


def readings(ollama: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Ollama makes of each Modelfile and conversation."""
    done = subprocess.run([str(ollama)], input=json.dumps(jobs), capture_output=True, text=True, check=True, timeout=60)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def compact(prompt: str, parts: list[dict[str, Any]]) -> str:
    """Ollama writes JSON as Go does, without spaces."""
    for part in parts:
        prompt = prompt.replace(json.dumps(part), json.dumps(part, separators=(",", ":")))
    return prompt


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "llama3", "mistral", "gemma", "phi3", "tiny"])
def test_ollama_renders_conversations_like_the_chat_template(family: str, ollama: Path) -> None:
    source = template(family)
    made = conversation("", set(), None, source, renderer(source))
    cases: list[tuple[Talk, list[dict[str, Any]]]] = [(talk, []) for talk in TALKS]
    if family.startswith("qwen"):
        cases += [(talk, TOOLS) for talk in TOOL_TALKS]
    if family == "gemma":  # has no system prompt
        cases = [(talk, tools) for talk, tools in cases if talk[0] is not SYSTEM]
    expected = [compact(renderer(source, tools or None)(talk), [*tools, ARGUMENTS]) for talk, tools in cases]
    found = readings(ollama, [job(made, talk, tools) for talk, tools in cases])
    assert [each["Prompt"] for each in found] == expected


def test_gemma_has_the_system_prompt_in_its_first_user_message(ollama: Path) -> None:
    source = template("gemma")
    made = conversation("gemma", set(), None, source, renderer(source))
    (found,) = readings(ollama, [job(made, [SYSTEM, AGAIN])])
    folded = {"role": "user", "content": f"{SYSTEM['content']}\n\n{AGAIN['content']}"}
    assert found["Prompt"] == renderer(source)([folded])


@pytest.mark.parametrize("answer", [f"{CALLED}", f"I will add.\n{CALLED}"])
def test_ollama_finds_the_tool_calls_of_an_answer(answer: str, ollama: Path) -> None:
    source = template("qwen3")
    made = conversation("qwen3", set(), None, source, renderer(source))
    (found,) = readings(ollama, [job(made, [USER], TOOLS, answer)])
    assert [(call["name"], call["arguments"]) for call in found["Calls"]] == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize(
    "system", ["Be brief.", 'Say "yes"\n\tor "no":\n\n  """both""" is no answer."""', " spaces around \n", '"quoted"']
)
def test_system_prompt_and_stops_come_through_the_modelfile(system: str, ollama: Path) -> None:
    stops = ("<|im_end|>", "\n\n", '"', " end")
    made = Conversation(template="{{ range .Messages }}{{ .Content }}|{{ end }}", stops=stops, system=system)
    (found,) = readings(ollama, [job(made, [USER])])
    assert (found["System"], tuple(found["Stops"])) == (system, stops)
    assert found["Prompt"] == f"{system}|{USER['content']}|"


@pytest.mark.parametrize("system", ['A docstring:\n"""\nlike this\n"""', "全角\u3000の空白"])
def test_system_prompt_that_would_change_is_not_in_the_modelfile(system: str, ollama: Path) -> None:
    made = Conversation(template="{{ range .Messages }}{{ .Content }}|{{ end }}", stops=(), system=system)
    (found,) = readings(ollama, [job(made, [USER])])
    assert found["System"] == ""
    changed = job(made, [USER]) | {"Modelfile": f'FROM ./model-q8_0.gguf\nSYSTEM """{system}"""\n'}
    done = subprocess.run([str(ollama)], input=json.dumps([changed]), capture_output=True, text=True, check=False)
    assert done.returncode != 0 or json.loads(done.stdout)[0]["System"] != system, "Ollama can read it by now"


def test_invisible_characters_of_a_chat_template_reach_the_policy(ollama: Path) -> None:
    def render(messages: list[dict[str, str]]) -> str:
        return "".join(f"\u00a0<{each['role']}>\U000e0001\n{each['content']}" for each in messages) + "\u200b"

    made = conversation("", set(), None, "a template", render)
    (found,) = readings(ollama, [job(made, [USER])])
    assert found["Prompt"] == render([USER])
