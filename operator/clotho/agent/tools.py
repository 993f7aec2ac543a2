"""The tools. Each returns a JSON answer; a failure is an answer too, with an `error` and what to do about it."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

import msgspec
from msgspec import Struct, field

from clotho.agent import answers
from clotho.agent.answers import Answer
from clotho.agent.evaluations import percent_correct
from clotho.agent.rate_limit import record_check
from clotho.api.inference_tests import TIDY_SECONDS
from clotho.api.names import LOGGED_COMPONENTS
from clotho.authoring.draft import Draft, RefusedEditError
from clotho.cluster.credentials import CredentialsError
from clotho.cluster.outcomes import ApiError, NotFound
from clotho.workspace.drafting import begin_draft, fresh_name
from clotho.workspace.history import component_of_title, kept_logs_of, of_last_attempt
from clotho.workspace.inference_tests import CannotStart, TestOrder, wait_for_test
from clotho.workspace.log_lines import readable
from clotho.workspace.logs import component_of, read_log
from clotho.workspace.objects import Workspace, WrongStateError
from clotho_contract.nearest import nearest

SESSIONS: Final = 256  # beyond that the oldest draft is dropped
LOG_LIMIT: Final = 20_000  # characters of each pod's log: an agent reads all of it
WANDB_NAME: Final = "tracking.wandb.name"
SELECT_TIP: Final = "Select one with rl_select_environment, then read its settings with rl_get_current_config."
TEST_TIP: Final = "Try it with rl_test_inference before training: a training run costs hours of GPU time."


class Settings(Struct, frozen=True, kw_only=True):
    status_interval_seconds: int = 1800
    base: Mapping[str, Any] = field(default_factory=dict)  # the spec that every run starts from
    test_secret: str = ""
    test_base_url: str = ""
    test_timeout_seconds: int = 600

    @property
    def can_test(self) -> bool:
        """The default models need a key; those at another address may not."""
        return bool(self.test_secret or self.test_base_url)


P = ParamSpec("P")
Tool = Callable[Concatenate["Toolbox", P], Coroutine[Any, Any, Answer]]
RunTool = Callable[Concatenate["Toolbox", str, P], Coroutine[Any, Any, Answer]]
Report = Callable[[str], Awaitable[None]]


def answers_errors(tool: Tool[P]) -> Tool[P]:
    """Mistakes of the agent and errors of the cluster are answers, never exceptions."""

    @wraps(tool)
    async def guarded(self: "Toolbox", /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            return await tool(self, *args, **kwargs)
        except RefusedEditError as refused:
            return {"error": str(refused), **refused.details}
        except WrongStateError as wrong:
            return {"error": str(wrong), "status": wrong.phase.lower()}
        except (ApiError, CredentialsError) as error:
            return {"error": getattr(error, "message", str(error))}

    return guarded


def about_a_run(tool: RunTool[P]) -> RunTool[P]:
    """A run that does not exist is answered with the nearest one that does."""

    @answers_errors
    @wraps(tool)
    async def guarded(self: "Toolbox", run_id: str, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            return await tool(self, run_id, *args, **kwargs)
        except NotFound as missing:
            known = await self.run_names()
            guess = "" if run_id in known else nearest(run_id, known)
            return {"error": f"{missing.message}{guess}", "available": known}

    return guarded


class Toolbox:
    """`session` identifies an agent. Its draft is kept here; what it has started is kept in the cluster."""

    def __init__(
        self, workspace: Workspace, settings: Settings, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._workspace = workspace
        self._settings = settings
        self._clock = clock
        self._drafts: OrderedDict[str, Draft] = OrderedDict()

    @property
    def can_test(self) -> bool:
        return self._settings.can_test

    async def run_names(self) -> list[str]:
        return sorted(run["metadata"]["name"] for run in await self._workspace.all("TrainingRun"))

    def _draft(self, session: str) -> Draft:
        if session not in self._drafts:
            hint = "" if session else " and pass the `session` it answers with: this connection keeps none"
            raise RefusedEditError(f"no environment is selected; call rl_select_environment first{hint}")
        return self._drafts[session]

    def _keep(self, session: str, draft: Draft) -> None:
        self._drafts[session] = draft
        self._drafts.move_to_end(session)
        while len(self._drafts) > SESSIONS:
            self._drafts.popitem(last=False)

    @answers_errors
    async def list_environments(self) -> Answer:
        found = [answers.environment_answer(each) for each in await self._workspace.all("Environment")]
        none = ("No environments yet: `clotho env discover DIRECTORY --config-map --write -` prints manifests.",)
        tips = (SELECT_TIP, TEST_TIP) if self.can_test else (SELECT_TIP,)
        return {"environments": found, "count": len(found), "tips": list(tips if found else none)}

    @answers_errors
    async def select_environment(self, session: str, name: str) -> Answer:
        draft = await begin_draft(self._workspace, name, self._settings.base)
        self._keep(session, draft)
        return {
            "message": f"Selected {name}; earlier edits are discarded.",
            "environment": name,
            "file_path": answers.file_path(draft.environment.entry),
            "session": session,
        }

    @answers_errors
    async def current_config(self, session: str) -> Answer:
        draft = self._draft(session)
        return {
            **answers.config_answer(draft),
            "problems": list(draft.problems("run")),
            "tip": "Change fields with rl_edit_config; start with rl_start_training once `problems` is empty.",
        }

    @answers_errors
    async def edit_config(self, session: str, name: str, value: Any) -> Answer:
        draft = self._draft(session).edit(name, value)
        self._keep(session, draft)
        return {
            "message": f"{name} is set.",
            "field": name,
            "value": draft.value(draft.fields()[name]) if name in draft.fields() else value,
            "config": answers.changed_settings(draft),
            "problems": list(draft.problems("run")),
        }

    @answers_errors
    async def start_training(self, session: str) -> Answer:
        draft = await self._refreshed(session)
        name = fresh_name(draft.environment.metadata.name)
        if problems := draft.problems(name):
            return {"error": "the run would not be accepted: " + "; ".join(problems), "problems": list(problems)}
        spec = draft.run_spec()
        if WANDB_NAME not in draft.locked():
            spec = answers.with_wandb_name(spec, draft.environment.metadata.name, self._clock())
        run = await self._workspace.create("TrainingRun", name, spec)
        run["status"] = {"policy": {"locked": draft.policy.locked}}  # as the operator is about to write it
        return {
            "run_id": name,
            "status": "starting",
            "environment": draft.environment.metadata.name,
            "config": answers.changed_settings(draft),
            "logs": answers.logs_answer(run),
            "message": "Check it with rl_check_status and read its logs with rl_get_logs; rl_stop_training stops it. "
            f"Once it trains, it can be checked every {answers.duration(self._settings.status_interval_seconds)}.",
            **answers.wandb_names(run),
        }

    async def _refreshed(self, session: str) -> Draft:
        """The environment and the policies may have changed since it was selected; the edits stay."""
        old = self._draft(session)
        new = await begin_draft(self._workspace, old.environment.metadata.name, self._settings.base)
        return msgspec.structs.replace(new, spec=old.spec, config=old.config, replicas=old.replicas)

    @about_a_run
    async def check_status(self, run_id: str) -> Answer:
        now = self._clock()
        run, left = await record_check(self._workspace, run_id, self._settings.status_interval_seconds, now)
        if left:
            return {
                "rate_limited": True,
                "run_id": run_id,
                "message": f"Training is slow: check again in {answers.duration(left)}.",
                "next_check_in_seconds": left,
            }
        return answers.status_answer(run, now, await percent_correct(self._workspace, run))

    @about_a_run
    async def logs(self, run_id: str, component: str, lines: int) -> Answer:
        """Not rate-limited: the log is where the first minutes of a run, and its failures, are explained."""
        if component not in LOGGED_COMPONENTS:
            guess = nearest(component, LOGGED_COMPONENTS)
            return {"error": f"no component {component!r}{guess}", "available": list(LOGGED_COMPONENTS)}
        run = await self._workspace.get("TrainingRun", run_id)
        pods = [pod for pod in await self._workspace.pods_of(run_id) if component_of(pod) == component]
        found = {name: text async for name, text in self._tails(pods, lines)} if pods else {}
        if not found:
            kept = of_last_attempt(await kept_logs_of(self._workspace, run))
            found = {log.title: _tail(log.text, lines) for log in kept if component_of_title(log.title) == component}
        if not found:
            return {"error": f"run {run_id} has no {component} pod now, and no log of one is kept"}
        return {"run_id": run_id, "component": component, "logs": found}

    async def _tails(self, pods: Sequence[Mapping[str, Any]], lines: int) -> AsyncIterator[tuple[str, str]]:
        for pod in pods:
            try:
                raw = [line async for line in read_log(self._workspace, pod, tail=lines)]
                text = _tail("\n".join(line.decode(errors="replace") for line in raw), lines)
            except ApiError as error:
                text = f"(no log: {error.message})"
            yield pod["metadata"]["name"], text

    @about_a_run
    async def stop_training(self, run_id: str) -> Answer:
        run = await self._workspace.stop_run(run_id)
        return {
            "message": f"{run_id} is stopping: its environments first, then the trainer after a final checkpoint.",
            "run_id": run_id,
            "status": "stopping",
            "environment": answers.environments_of(run),
        }

    @about_a_run
    async def results(self, run_id: str) -> Answer:
        return answers.results_answer(await self._workspace.get("TrainingRun", run_id))

    @answers_errors
    async def list_runs(self) -> Answer:
        runs = [answers.run_summary(run) for run in await self._workspace.all("TrainingRun")]
        return {"runs": runs, "count": len(runs)}

    @answers_errors
    async def test_inference(
        self, session: str, num_steps: int, group_size: int, models: Sequence[str] | None, report: Report
    ) -> Answer:
        draft = self._draft(session)
        settings = self._settings
        order = TestOrder(
            environment=draft.environment.metadata.name,
            config=dict(draft.config),
            models=tuple(models or ()),
            base_url=settings.test_base_url,
            secret_name=settings.test_secret,
            steps=num_steps,
            group_size=group_size,
            timeout_seconds=settings.test_timeout_seconds,
            ttl_seconds=TIDY_SECONDS,
        )
        name = fresh_name(order.environment)
        await self._workspace.create("InferenceTest", name, order.spec())

        async def pass_on(test: Mapping[str, Any]) -> None:
            await report(test.get("status", {}).get("message", "") or "waiting for the operator")

        try:
            test = await wait_for_test(self._workspace, name, order.limit_seconds, pass_on)
        except CannotStart as error:
            await self._workspace.delete("InferenceTest", name)
            return {"error": f"the test cannot start: {error}"}
        except TimeoutError:
            test = await self._workspace.get("InferenceTest", name)
            late = f"not finished after {order.limit_seconds:.0f} s; InferenceTest {name} continues"
            return {"error": late, **answers.test_answer(test)}
        return answers.test_answer(test)


def _tail(text: str, lines: int) -> str:
    readable_lines = (each for line in text.split("\n")[-lines:] for each in readable(line))
    return "\n".join(readable_lines)[-LOG_LIMIT:]
