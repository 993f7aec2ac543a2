"""The runner's behaviour with an API server and a policy that are objects in memory."""

import asyncio
from collections.abc import Mapping

import pytest

from clotho_environment import Completion, Config, Environment, Group, InferenceError, InferenceUnavailableError
from clotho_environment.clients.api_server import ApiServerRefusedError
from clotho_environment.pod.telemetry import Telemetry
from clotho_environment.rollouts.runner import Limits, Runner
from clotho_environment.sdk.environment import build
from clotho_environment.sdk.group import InvalidGroupError
from clotho_environment.sdk.sampling import InferenceUnauthorizedError

ANSWER = Completion(text="ok", prompt_tokens=(1,), tokens=(2,), logprobs=(-0.5,), policy_version=0)


class MemoryServer:
    """Counts a step for each group, like a run whose batch is one group."""

    accepts_at_once = False

    def __init__(self, refusal: Exception | None = None) -> None:
        self.groups: list[Group] = []
        self.is_registered = False
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.deregistrations = 0
        self.refusal = refusal
        self.room = asyncio.Event()
        self.room.set()
        self.waiting = asyncio.Semaphore(0)

    async def register(self) -> None:
        self.is_registered = True

    async def submit(self, group: Group, sequences: object) -> None:
        self.waiting.release()
        await self.room.wait()
        if self.refusal:
            raise self.refusal
        self.groups.append(group)

    async def current_step(self) -> int:
        return len(self.groups)

    async def report_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        self.evaluations.append((step, dict(figures)))

    async def disconnect(self) -> None:
        self.deregistrations += 1


class Scripted(Environment[Config, int]):
    """Does what the test wants with each item; `None` in the script means a good group."""

    async def rollout(self, item, client):
        return await self.behave(item)

    def items(self):
        return range(10**9)

    async def behave(self, item):
        raise NotImplementedError


def runner_for(behaviour, server: MemoryServer, steps: int = 5, **config):
    fields = {"group_size": 1, "concurrency": 2, "max_consecutive_failures": 3} | config
    environment = build(Scripted, fields)
    environment.behave = behaviour
    limits = Limits(max_tokens=8, steps=lambda: steps, follow_seconds=0.0, stop_grace_seconds=0.05)
    telemetry = Telemetry()
    runner = Runner(environment, None, server, limits, telemetry)  # type: ignore[arg-type]
    return runner, telemetry


def rollouts(telemetry: Telemetry, outcome: str) -> float:
    return telemetry.registry.get_sample_value("clotho_environment_rollouts_total", {"outcome": outcome}) or 0


async def good(_: int) -> Group:
    await asyncio.sleep(0)
    return Group([ANSWER], [1.0])


async def run(runner: Runner):
    async with asyncio.timeout(20):
        return await runner.run(asyncio.Event())


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("clotho_environment.rollouts.failures.FIRST_PAUSE_SECONDS", 0.0)


async def test_runs_until_the_last_step_and_deregisters():
    server = MemoryServer()
    runner, telemetry = runner_for(good, server)
    ending = await run(runner)
    assert ending.reason == "Finished"
    assert 5 <= (ending.step or 0) <= len(server.groups)
    assert server.deregistrations == 1
    assert rollouts(telemetry, "sent") == len(server.groups)


async def test_one_failure_among_many_is_only_counted(caplog):
    async def moody(item: int) -> Group:
        if item % 2:
            raise ValueError("bad luck")
        return await good(item)

    runner, telemetry = runner_for(moody, MemoryServer())
    assert (await run(runner)).reason == "Finished"
    assert rollouts(telemetry, "failed") >= 2
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == 1, "the first traceback is printed, repetitions are counted"


@pytest.mark.parametrize(
    ("behaviour", "outcome", "explanation"),
    [
        ("raise", "failed", "ValueError: broken scorer"),
        ("garbage", "refused", "rollout() returned a dict"),
        ("wrong size", "refused", "attempts: 2 of them, but group_size is 1"),
        ("hang", "timed_out", "longer than rollout_timeout_seconds = 0.01"),
    ],
)
async def test_an_environment_that_never_works_ends_with_the_reason(behaviour, outcome, explanation):
    async def broken(_: int):
        match behaviour:
            case "raise":
                raise ValueError("broken scorer")
            case "garbage":
                return {"tokens": []}
            case "wrong size":
                return Group([ANSWER, ANSWER], [0.0, 1.0])
        return await asyncio.Event().wait()

    server = MemoryServer()
    runner, telemetry = runner_for(broken, server, rollout_timeout_seconds=0.01, concurrency=1)
    ending = await run(runner)
    assert ending.reason == "EnvironmentFailed"
    assert ending.message.startswith("3 rollouts in a row failed; the last: ")
    assert explanation in ending.message
    assert rollouts(telemetry, outcome) == 3
    assert server.deregistrations == 1


async def test_an_own_timeout_error_of_the_environment_is_a_failure_and_not_a_hang():
    async def impatient_author(_: int):
        raise TimeoutError("my sandbox was slow")

    runner, telemetry = runner_for(impatient_author, MemoryServer(), concurrency=1)
    assert "my sandbox was slow" in (await run(runner)).message
    assert rollouts(telemetry, "failed") == 3


async def test_an_unavailable_policy_is_retried_and_not_counted_as_a_failure(monkeypatch):
    outages = iter([InferenceUnavailableError("restarting")] * 10)

    async def unlucky(item: int) -> Group:
        for outage in outages:
            raise outage
        return await good(item)

    real_sleep = asyncio.sleep
    monkeypatch.setattr("clotho_environment.rollouts.runner.asyncio.sleep", lambda _: real_sleep(0))
    runner, telemetry = runner_for(unlucky, MemoryServer())
    assert (await run(runner)).reason == "Finished"
    assert rollouts(telemetry, "policy_unavailable") == 10


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (InferenceUnauthorizedError("the inference server refuses our token"), "Unauthorized"),
        (ApiServerRefusedError("the API server refuses our token", "Unauthorized"), "Unauthorized"),
        (ApiServerRefusedError("group_size 3 does not divide the batch"), "InvalidConfig"),
    ],
)
async def test_permanent_errors_end_the_run_at_once(refusal, reason):
    runner, _ = runner_for(good, MemoryServer(refusal))
    ending = await run(runner)
    assert (ending.reason, ending.message) == (reason, str(refusal))


async def test_a_wrong_request_to_the_policy_is_the_environments_failure():
    async def wrong(_: int):
        raise InferenceError("POST /v1/completions: 400 n must be positive")

    runner, _ = runner_for(wrong, MemoryServer())
    assert "n must be positive" in (await run(runner)).message


async def test_a_group_that_the_server_refuses_is_the_environments_failure():
    runner, telemetry = runner_for(good, MemoryServer(InvalidGroupError("scores[0]: no")), concurrency=1)
    assert "scores[0]: no" in (await run(runner)).message
    assert rollouts(telemetry, "refused") == 3


async def test_skipped_and_overlong_and_equal_groups_are_not_sent():
    long = Completion(text="x", prompt_tokens=(1,), tokens=(2,) * 8, logprobs=(-0.5,) * 8)
    script = {0: None, 1: Group([long, long], [0, 1]), 2: Group([ANSWER, ANSWER], [1, 1])}

    async def picky(item: int):
        await asyncio.sleep(0)
        return script.get(item, Group([ANSWER, ANSWER], [0, 1]))

    server = MemoryServer()
    runner, telemetry = runner_for(picky, server, group_size=2, skip_equal_scores=True)
    assert (await run(runner)).reason == "Finished"
    assert [rollouts(telemetry, outcome) for outcome in ("skipped", "too_long", "equal_scores")] == [1, 1, 1]
    assert all(list(group.scores) == [0, 1] for group in server.groups)


async def test_stop_lets_rollouts_in_flight_finish():
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(_: int) -> Group:
        started.set()
        await release.wait()
        return Group([ANSWER], [1.0])

    server, stop = MemoryServer(), asyncio.Event()
    runner, _ = runner_for(slow, server)
    task = asyncio.create_task(runner.run(stop))
    await started.wait()
    stop.set()
    await asyncio.sleep(0)
    assert runner.unready() in (None, "stopping")
    release.set()
    ending = await task
    assert (ending.reason, len(server.groups), server.deregistrations) == ("Stopped", 2, 1)


async def test_stop_drops_what_does_not_finish_in_time():
    started = asyncio.Event()

    async def endless(_: int):
        started.set()
        await asyncio.Event().wait()

    server, stop = MemoryServer(), asyncio.Event()
    runner, _ = runner_for(endless, server)
    task = asyncio.create_task(runner.run(stop))
    await started.wait()
    stop.set()
    ending = await task
    assert (ending.reason, server.groups, server.deregistrations) == ("Stopped", [], 1)


async def test_code_that_swallows_cancellation_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr("clotho_environment.rollouts.runner.CANCEL_SECONDS", 0.01)
    cancelled = asyncio.Semaphore(0)

    async def stubborn(item: int):
        if item == 0:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.release()
                await asyncio.Event().wait()
        return await good(item)

    runner, _ = runner_for(stubborn, MemoryServer())
    assert (await run(runner)).reason == "Finished"
    assert not cancelled.locked()


async def test_items_that_hang_are_a_hang_too():
    runner, telemetry = runner_for(good, MemoryServer(), rollout_timeout_seconds=0.01, concurrency=1)

    async def no_items():
        await asyncio.Event().wait()
        yield 1

    runner._environment.items = no_items
    assert (await run(runner)).reason == "EnvironmentFailed"
    assert rollouts(telemetry, "timed_out") == 3


async def test_a_close_that_fails_changes_nothing(caplog):
    runner, _ = runner_for(good, MemoryServer())

    async def close():
        raise OSError("already gone")

    runner._environment.close = close
    assert (await run(runner)).reason == "Finished"
    assert "already gone" in caplog.text


async def test_back_pressure_keeps_groups_and_starts_no_more_than_the_workers_hold():
    made = 0

    async def counted(item: int) -> Group:
        nonlocal made
        made += 1
        return await good(item)

    server = MemoryServer()
    server.room.clear()
    runner, telemetry = runner_for(counted, server)
    task = asyncio.create_task(run(runner))
    for _ in range(2):
        await server.waiting.acquire()
    assert (made, server.groups) == (2, [])
    assert telemetry.registry.get_sample_value("clotho_environment_groups_waiting") == 2
    runner.last_activity -= 10**6
    assert runner.unhealthy() is None, "a full queue is no illness"
    server.room.set()
    assert (await task).reason == "Finished"
    assert len(server.groups) >= 5


async def test_a_worker_goes_on_while_a_server_that_takes_groups_at_once_takes_its_last():
    made = asyncio.Semaphore(0)

    async def counted(item: int) -> Group:
        made.release()
        return await good(item)

    server = MemoryServer()
    server.accepts_at_once = True
    server.room.clear()
    runner, _ = runner_for(counted, server, concurrency=1)
    task = asyncio.create_task(run(runner))
    for _ in range(2):
        await made.acquire()
    await server.waiting.acquire()
    for _ in range(20):
        await asyncio.sleep(0)
    assert made.locked(), "its second group waits for the first one's turn, so it makes no third"
    assert server.waiting.locked()
    server.room.set()
    assert (await task).reason == "Finished"


async def test_a_refused_group_does_not_take_the_next_one_along():
    class RefusesTheFirst(MemoryServer):
        accepts_at_once = True

        async def submit(self, group: Group, sequences: object) -> None:
            await asyncio.sleep(0)
            if group.scores == [0.0]:
                raise InvalidGroupError("scores[0]: no")
            await super().submit(group, sequences)

    async def numbered(item: int) -> Group:
        await asyncio.sleep(0)
        return Group([ANSWER], [float(item)])

    server = RefusesTheFirst()
    runner, telemetry = runner_for(numbered, server, concurrency=1)
    assert (await run(runner)).reason == "Finished"
    assert rollouts(telemetry, "refused") == 1
    assert [group.scores for group in server.groups][:3] == [[1.0], [2.0], [3.0]]


async def test_stop_delivers_what_was_made():
    server, stop = MemoryServer(), asyncio.Event()
    server.accepts_at_once = True
    server.room.clear()
    runner, _ = runner_for(good, server, concurrency=1)
    task = asyncio.create_task(runner.run(stop))
    await server.waiting.acquire()
    stop.set()
    await asyncio.sleep(0)
    server.room.set()
    ending = await task
    assert ending.reason == "Stopped"
    assert 1 <= len(server.groups) <= 2


async def test_a_failing_setup_ends_it_with_the_cause():
    runner, _ = runner_for(good, MemoryServer())

    async def setup():
        raise FileNotFoundError("data.jsonl")

    runner._environment.setup = setup
    ending = await run(runner)
    assert ending.reason == "EnvironmentFailed"
    assert ending.message.startswith("setup() of the environment failed: FileNotFoundError: data.jsonl")


async def test_evaluation_runs_when_the_step_passes_a_multiple(caplog):
    seen: list[int] = []
    server = MemoryServer()
    runner, telemetry = runner_for(good, server, steps=50, evaluate_every_steps=10)

    async def evaluate(_: object) -> Mapping[str, float]:
        seen.append(len(server.groups))
        if len(seen) == 1:
            raise RuntimeError("no evaluation data")
        return {"accuracy": 0.25, "useless": float("nan")}

    runner._environment.evaluate = evaluate
    assert (await run(runner)).reason == "Finished"
    assert 2 <= len(seen) <= 5
    assert "no evaluation data" in caplog.text
    value = telemetry.registry.get_sample_value("clotho_environment_evaluation", {"measure": "accuracy"})
    assert value == 0.25
    assert [figures for _, figures in server.evaluations] == [{"accuracy": 0.25}] * (len(seen) - 1)


async def test_health_and_readiness(monkeypatch):
    server = MemoryServer()
    runner, _ = runner_for(good, server)
    assert runner.unready() == "waiting for the API server and the trainer"
    server.is_registered = True
    assert runner.unready() is None
    assert runner.unhealthy() is None
    runner.last_activity -= 3600 + 61
    assert runner.unhealthy() == "nothing has happened for 3661 s"
    server.is_registered = False
    assert runner.unhealthy() is None, "waiting for others is no illness"
