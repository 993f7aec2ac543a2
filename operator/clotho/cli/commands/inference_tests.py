"""`test`: try an environment against served models, and wait for what comes out."""

from __future__ import annotations

import argparse
from typing import Any

from clotho.agent.answers import test_answer
from clotho.api.inference_tests import TIDY_SECONDS
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.changes import read_change
from clotho.cli.session.drafts import edited_draft
from clotho.cli.terminal import output, view
from clotho.cluster.outcomes import ApiError, NotFound
from clotho.workspace.drafting import fresh_name
from clotho.workspace.inference_tests import TestOrder, wait_for_test
from clotho.workspace.objects import Workspace


async def test(options: argparse.Namespace, workspace: Workspace) -> int:
    """0 when the environment works, 1 when it does not."""
    draft = await edited_draft(workspace, options.name, map(read_change, options.changes))
    order = TestOrder(
        environment=options.name,
        config=dict(draft.config),
        models=tuple(options.models or ()),
        base_url=options.base_url,
        secret_name=options.secret,
        steps=options.steps,
        group_size=options.group_size,
        timeout_seconds=options.timeout,
        ttl_seconds=None if options.keep else TIDY_SECONDS,
    )
    name = fresh_name(options.name)
    await workspace.create("InferenceTest", name, order.spec())
    told = ""

    async def tell(seen: dict[str, Any]) -> None:
        nonlocal told
        message = seen.get("status", {}).get("message", "")
        if message and message != told:
            told = message
            output.note(message)

    try:
        done = await wait_for_test(workspace, name, order.patience_seconds, tell)
    except TimeoutError:
        raise Failure(f"InferenceTest {name} is not finished in time", Exit.TIMEOUT) from None
    finally:
        await _tidy(workspace, name, is_kept=options.keep)
    answer = test_answer(done)
    output.show(options.output, answer, _lines(answer))
    return Exit.OK if answer["summary"]["environment_works"] else Exit.UNSUCCESSFUL


async def _tidy(workspace: Workspace, name: str, *, is_kept: bool) -> None:
    """However the wait ended, by Ctrl-C too. What cannot be deleted now goes by itself, a while after its end."""
    if is_kept:
        output.note(f"InferenceTest {name} is kept; to remove it: kubectl delete inferencetest {name}")
        return
    try:
        await workspace.delete("InferenceTest", name)
        output.note(f"InferenceTest {name} is deleted; --keep keeps it")
    except NotFound:
        return  # somebody else was faster
    except ApiError as error:
        told = f"goes {TIDY_SECONDS // 3600} hours after its end"
        output.note(f"InferenceTest {name} could not be deleted and {told}: {error.message}")


def _lines(answer: dict[str, Any]) -> list[str]:
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
    lines = output.rows(header, body, "No model was tested.")
    for each in answer["models_tested"]:
        if each["error"]:
            lines += ["", f"{each['model']}:", *(f"  {line}" for line in each["error"].splitlines())]
    summary = answer["summary"]
    works = "The environment works" if summary["environment_works"] else "The environment does not work yet"
    best = f"; the best model is {summary['best_model']}" if summary["best_model"] else ""
    return [*lines, "", f"{works}{best}. {answer['message']}".rstrip()]
