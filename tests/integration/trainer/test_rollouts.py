"""Rollouts with tools over a scripted engine, and which chat templates can carry them."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from clotho_contract.trajectory import IGNORE_INDEX
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Completion, EngineBusyError, Request
from clotho_trainer.model import tiny
from clotho_trainer.rollouts.inline.chat import Chat
from clotho_trainer.rollouts.inline.records import Record
from clotho_trainer.rollouts.inline.rewards import Measure
from clotho_trainer.rollouts.inline.rollouts import Conduct, PromptTooLongError, Rollouts, SamplingClient, Trajectory
from clotho_trainer.rollouts.inline.task import make_task
from clotho_trainer.rollouts.inline.tools import from_function, methods_of
from integration.trainer import tool_model

TEMPLATES = Path(str(find_spec("trl").origin)).parent / "chat_templates"  # type: ignore[union-attr]
RECORD = Record("line 1", ({"role": "user", "content": "x+3"},), 3, {"prompt": "x+3"})
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "x+3"}}</tool_call>'


def calculate(expression: str) -> str:
    """Work out a sum."""
    return "7"


class Script:
    """An engine with scripted answers that records its requests."""

    def __init__(self, *answers: str) -> None:
        self.tokenizer = tool_model.make_tokenizer()
        self.tokenizer.add_tokens(["_", "{", "}"])
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.busy = 0

    async def generate(self, request: Request) -> list[Completion]:
        self.requests.append(request)
        if self.busy:
            self.busy -= 1
            raise EngineBusyError("out of GPU memory while decoding; ask again")
        return [self._completion(request) for _ in range(request.n)]

    def _completion(self, request: Request) -> Completion:
        text = self.answers.pop(0)
        tokens = [*self.tokenizer(text)["input_ids"], self.tokenizer.eos_token_id]
        kept = tokens[: request.sampling.max_tokens]
        return Completion(
            tokens=tuple(kept),
            logprobs=(-0.5,) * len(kept),
            text=text,
            finish_reason="stop" if kept == tokens else "length",
            versions=((len(self.requests), len(kept)),),
        )

    def problem(self) -> str | None:
        return None

    async def start(self) -> None: ...

    async def publish(self) -> None: ...

    async def stop(self) -> None: ...


def rollouts(script: Script, conduct: Conduct, *, limit: int = 60, length: int = 200) -> Rollouts:
    tokenizer = script.tokenizer
    schemas = make_task([RECORD], [Measure("any", len)], conduct).schemas
    chat = Chat(tokenizer, frozenset({tokenizer.eos_token_id}), schemas)
    policy = SamplingClient(script, chat, temperature=1.0, completion_limit=limit, length_limit=length)
    return Rollouts(policy, chat, conduct, tokenizer.decode)


def sampled(trajectory: Trajectory, tokenizer: Any) -> str:
    kept = zip(trajectory.tokens, trajectory.masks, strict=True)
    return str(tokenizer.decode([token for token, mask in kept if mask != IGNORE_INDEX]))


async def test_a_tool_is_called_and_its_answer_is_not_trained_on() -> None:
    script = Script(CALL, "7")
    (trajectory,) = await rollouts(script, Conduct(tools=[from_function(calculate, "t")])).group(RECORD, 1)
    assert script.tokenizer.decode(trajectory.tokens) == f"{CALL}<eos><|tool|>7<|assistant|>7<eos>"
    assert sampled(trajectory, script.tokenizer) == f"{CALL}<eos>7<eos>"
    assert [p for p, m in zip(trajectory.logprobs, trajectory.masks, strict=True) if m == IGNORE_INDEX] == [1.0] * 3
    assert script.requests[1].prompt == (*trajectory.prompt, *trajectory.tokens[:-2]), (
        "the call stays as it was sampled"
    )
    assert (trajectory.output, trajectory.version, trajectory.calls, trajectory.failed_calls) == ("7", 1, 1, 0)
    roles = [message["role"] for message in trajectory.messages]
    assert roles == ["assistant", "tool", "assistant"]
    assert trajectory.messages[0]["tool_calls"][0]["function"]["arguments"] == {"expression": "x+3"}


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ('<tool_call>{"name": "sing"}</tool_call>', "there is no tool sing; there are calculate"),
        ("<tool_call>sing</tool_call>", "the tool call is not json"),
        ('<tool_call>{"name": "calculate", "arguments": {"sum": 1}}</tool_call>', "missing a required argument"),
    ],
)
async def test_a_wrong_call_is_answered_with_what_is_wrong(call: str, answer: str) -> None:
    script = Script(call, "?")
    group = rollouts(script, Conduct(tools=[from_function(calculate, "t")]), limit=190)
    (trajectory,) = await group.group(RECORD, 1)
    assert answer in trajectory.messages[1]["content"].lower()
    assert (trajectory.calls, trajectory.failed_calls) == (1, 1)


async def test_rounds_of_calls_are_limited() -> None:
    script = Script(*[CALL] * 9)
    conduct = Conduct(tools=[from_function(calculate, "t")], max_iterations=3)
    (trajectory,) = await rollouts(script, conduct).group(RECORD, 1)
    assert (len(script.requests), trajectory.calls) == (4, 3)


async def test_an_answer_that_does_not_fit_ends_the_rollout() -> None:
    script = Script(CALL, "7")
    conduct = Conduct(tools=[from_function(calculate, "t")])
    (trajectory,) = await rollouts(script, conduct, limit=8).group(RECORD, 1)
    assert trajectory.is_truncated
    assert sampled(trajectory, script.tokenizer) == f"{CALL}<eos>"


async def test_every_rollout_has_an_environment_of_its_own() -> None:
    script = Script(CALL, CALL, "1", "2")
    first, second = await rollouts(script, Conduct(environment=tool_model.Desk)).group(RECORD, 2)
    assert first.environment is not second.environment
    assert first.messages[1]["content"] == str(first.environment.x + 3)
    assert script.requests[0].n == 2, "the common prompt is read once"


async def test_a_custom_rollout() -> None:
    async def twice(record: Record, policy: SamplingClient) -> Trajectory:
        trajectory = policy.begin(record.messages)
        first = await policy.sample(trajectory)
        policy.observe(trajectory, "<|tool|>no<|assistant|>")
        await policy.sample(trajectory, max_tokens=5)
        trajectory.columns["first"] = first
        return trajectory

    script = Script("a", "b")
    (trajectory,) = await rollouts(script, Conduct(rollout=twice)).group(RECORD, 1)
    assert sampled(trajectory, script.tokenizer) == "a<eos>b<eos>"
    assert trajectory.outcome().columns == {"first": "a"}


async def test_mistakes_of_a_custom_rollout_are_named() -> None:
    async def forgets(record: Record, policy: SamplingClient) -> None: ...

    async def raises(record: Record, policy: SamplingClient) -> Trajectory:
        raise KeyError("no")

    with pytest.raises(TrainerError, match=r"it must return the trajectory that policy.begin"):
        await rollouts(Script(), Conduct(rollout=forgets)).group(RECORD, 1)
    with pytest.raises(TrainerError, match=r"inline.tools.rollout raised KeyError: 'no' .* for line 1"):
        await rollouts(Script(), Conduct(rollout=raises)).group(RECORD, 1)


async def test_a_prompt_that_is_too_long_is_left_out() -> None:
    with pytest.raises(PromptTooLongError, match=r"its prompt has .* tokens; the limit is 4"):
        await rollouts(Script(), Conduct(), length=4).group(RECORD, 1)


async def test_a_busy_engine_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clotho_trainer.rollouts.inline.rollouts._PAUSE_SECONDS", 0)
    script = Script("a")
    script.busy = 2
    (trajectory,) = await asyncio.wait_for(rollouts(script, Conduct()).group(RECORD, 1), 30)
    assert (trajectory.output, len(script.requests)) == ("a", 3)


def chat_with(template: str | None) -> Chat:
    tokenizer: Any = tiny.make_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    tokenizer.chat_template = template
    schemas = [tool.schema for tool in methods_of(tool_model.Desk(), "t")]
    return Chat(tokenizer, frozenset({tokenizer.eos_token_id}), schemas)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_instruct_2507"])
def test_templates_of_qwen_carry_tools(name: str) -> None:
    chat = chat_with((TEMPLATES / f"{name}.jinja").read_text())
    chat.check_tools(name)
    suffix = chat._tokenizer.decode(chat.after_call(["calculate"] * 2, ["first", "second"]))
    assert suffix.count("<tool_response>") == 2 or "first" in suffix
    assert suffix.index("first") < suffix.index("second") < suffix.index("assistant")


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (None, "the chat template of m is missing"),
        (tiny.make_tokenizer().chat_template, "leaves out the tool calculate"),
        ("{{ raise_exception('no tools here') }}", "refuses conversations with tools .*no tools here"),
        ("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}", "leaves out what the model called"),
        (
            "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}<|im_end|>{% endfor %}",
            "does not write calls as <tool_call>",
        ),
    ],
)
def test_a_template_that_loses_tools_is_refused_with_the_reason(template: str | None, sentence: str) -> None:
    with pytest.raises(TrainerError, match=sentence):
        chat_with(template).check_tools("m")


def test_llama_s_template_is_refused_for_its_other_form_of_calls() -> None:
    chat = chat_with((TEMPLATES / "llama3_1.jinja").read_text().replace("<|eot_id|>", "<|im_end|>"))
    with pytest.raises(TrainerError, match=r"Qwen2.5 and Qwen3 have templates that do"):
        chat.check_tools("llama")
