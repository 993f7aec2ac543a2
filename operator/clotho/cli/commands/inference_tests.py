"""`test`: try an environment against served models, and wait for the result."""

from __future__ import annotations

import argparse
from typing import Any, Final

from clotho.agent.answers import test_answer
from clotho.api.inference_tests import TIDY_SECONDS
from clotho.api.phases import FINISHED_TEST_PHASES
from clotho.authoring.changes import is_run_field
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.changes import read_change
from clotho.cli.session.drafts import edited_draft, refuse
from clotho.cli.session.hints import hint
from clotho.cli.session.termination import cancelled_by_sigterm
from clotho.cli.terminal import output, view
from clotho.cli.terminal.screen import page_width
from clotho.cluster.outcomes import ApiError, NotFound
from clotho.plan.pod_problems import CONFIG_ERROR
from clotho.workspace.drafting import fresh_name
from clotho.workspace.inference_tests import CannotStart, TestOrder, wait_for_test
from clotho.workspace.objects import Workspace

Answer = dict[str, Any]
OF_THE_MODEL: Final = "Inference"  # how the names of the environment kit's errors about the model's API start


async def test(options: argparse.Namespace, workspace: Workspace) -> int:
    """0 when the environment works, 1 when it does not, 6 when that is unknown after `--timeout`."""
    changes = [read_change(text) for text in options.changes]
    draft, refusals = await edited_draft(workspace, options.name, changes)
    own = {each.name for each in draft.environment.status.fields}
    of_runs = [name for name, _ in changes if is_run_field(name) and name not in own]
    refuse(
        (f"--set {name}: this is a field of runs; a test has those of the environment" for name in of_runs), refusals
    )
    order = TestOrder(
        environment=options.name,
        config=dict(draft.config),
        models=tuple(options.models or ()),
        base_url=options.base_url,
        secret_name=options.secret,
        steps=options.steps,
        group_size=options.group_size,
        timeout_seconds=_model_seconds(options.timeout),
        ttl_seconds=None if options.keep else TIDY_SECONDS,
    )
    async with cancelled_by_sigterm():
        answer = test_answer(await _run(options, workspace, order))
    output.show(options.output, answer, _lines(answer, options))
    return Exit.OK if answer["summary"]["environment_works"] else Exit.UNSUCCESSFUL


def _model_seconds(timeout: int) -> int:
    """For each model: the rest is for starting the pods and for results, also those of a model that hangs."""
    return max(1, timeout * 3 // 4)


async def _run(options: argparse.Namespace, workspace: Workspace, order: TestOrder) -> dict[str, Any]:
    name, last = fresh_name(options.name), ""

    async def report(seen: dict[str, Any]) -> None:
        nonlocal last
        status = seen.get("status", {})
        message = status.get("message", "")
        if message and message != last and status.get("phase") not in FINISHED_TEST_PHASES:  # the end is the verdict's
            last = message
            output.note(message)

    try:
        await workspace.create("InferenceTest", name, order.spec())
        return await wait_for_test(workspace, name, options.timeout, report)
    except CannotStart as error:
        raise Failure(f"the test cannot start: {error}", Exit.NOT_FOUND) from None
    except TimeoutError:
        state = last or f"the operator has not started it; see: {hint(options, 'check')}"
        raise Failure(f"not finished after {view.duration(options.timeout)}: {state}", Exit.TIMEOUT) from None
    finally:
        await _tidy(workspace, name, is_kept=options.keep)


async def _tidy(workspace: Workspace, name: str, *, is_kept: bool) -> None:
    """However the wait ended, by a signal too. What cannot be deleted now expires a while after it has finished."""
    if is_kept:
        remove = f"kubectl delete inferencetest {name} -n {workspace.namespace}"
        output.note(f"InferenceTest {name} is kept; to delete it: {remove}")
        return
    try:
        await workspace.delete("InferenceTest", name)
        output.note(f"InferenceTest {name} is deleted; --keep keeps it")
    except NotFound:
        return  # never created, or deleted by someone else
    except ApiError as error:
        expiry = f"expires {TIDY_SECONDS // 3600} hours after it has finished"
        output.note(f"InferenceTest {name} could not be deleted and {expiry}: {error.message}")


def _lines(answer: Answer, options: argparse.Namespace) -> list[str]:
    body = [
        [
            each["model"],
            each["size"],
            each["status"],
            f"{each['steps_tested']}/{answer['num_steps']}",
            f"{each['correct']}/{each['completions']}",
            view.number(each["accuracy"]),
            view.number(each["step_success_rate"]),
        ]
        for each in answer["models_tested"]
    ]
    header = ["MODEL", "SIZE", "STATUS", "STEPS", "CORRECT", "ACCURACY", "STEP SUCCESS"]
    lines = output.rows(header, body, "No model was tested.", page_width())
    for each in answer["models_tested"]:
        for sample in each["samples"]:
            lines += ["", f"{each['model']}, score {view.number(sample['score'])}:", *_sample_lines(sample)]
        if each["error"]:
            lines += ["", f"{each['model']}:", *(f"  {line}" for line in each["error"].splitlines())]
    return [*lines, "", verdict(answer, options.secret)]


def _sample_lines(sample: Answer) -> list[str]:
    texts = {"prompt": sample["prompt"], "answer": sample["answer"]}
    return [f"  {name}  {' '.join(str(text).split()) or '(empty)'}" for name, text in texts.items()]


def verdict(answer: Answer, secret: str) -> str:
    """Which is at fault where something is: the test's spec, the key, the models, the environment, or its pods."""
    summary, message = answer["summary"], answer["message"]
    if summary["environment_works"]:
        return message or "The environment works."
    if summary["models_tested"]:
        return f"The environment runs. {message or 'No model made all its groups.'}"
    if message and all(each["status"] == "pending" for each in answer["models_tested"]):
        return f"The environment was not tested. {message}"
    errors = [each["error"] or "" for each in answer["models_tested"]]
    if errors and all(CONFIG_ERROR in error for error in errors):
        return f"The environment was not tested: its pods lack something. {message}".rstrip()
    if not errors or not all(OF_THE_MODEL in error for error in errors):
        return f"The environment does not work yet. {message}".rstrip()
    if all("401" in error or "403" in error for error in errors):
        key = f"the key OPENAI_API_KEY in Secret {secret}" if secret else "--secret: without it no key is sent"
        return f"The environment was not tested: the models' API rejected the key. Check {key}."
    return (
        "The environment was not tested: no model answered. Check --base-url and --model; a Service of the cluster is "
        "NAME:PORT or NAME.NAMESPACE.svc:PORT, with the port of its pods."
    )
