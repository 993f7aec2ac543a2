"""Runs an environment: concurrent rollouts, submission of groups, contained failures, a clean end."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from clotho_contract.termination import Reason, Termination
from clotho_environment.clients.api_server import ApiServer, ApiServerRefusedError
from clotho_environment.pod.telemetry import Outcome, Telemetry
from clotho_environment.rollouts.failures import FailureLog, summarize
from clotho_environment.rollouts.items import ItemStream
from clotho_environment.sdk.environment import AnyEnvironment, EnvironmentFailedError
from clotho_environment.sdk.group import Group, InvalidGroupError, Sequence, check_group
from clotho_environment.sdk.sampling import InferenceUnauthorizedError, InferenceUnavailableError, SamplingClient

log = logging.getLogger(__name__)

CANCEL_SECONDS = 5.0


class _Delivery:
    """Of a worker's last group, while its next one is being made."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.create_task(work)

    async def wait(self) -> None:
        """Raises what the delivery has raised, once."""
        task, self.task = self.task, None
        if task is not None:
            await task


class RolloutTimedOutError(Exception):
    """Environment code hangs, or the time limit is too short for it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the run sets, not the environment."""

    max_tokens: int  # longest sequence that the trainer takes
    steps: Callable[[], int]  # read again and again: `training.steps` of a live run may be raised
    follow_seconds: float = 1.0
    stop_grace_seconds: float = 10.0


class Runner:
    def __init__(
        self,
        environment: AnyEnvironment,
        client: SamplingClient,
        api_server: ApiServer,
        limits: Limits,
        telemetry: Telemetry,
    ) -> None:
        self._environment = environment
        self._client = client
        self._api_server = api_server
        self._limits = limits
        self._telemetry = telemetry
        self._items = ItemStream(environment)
        self._failures = FailureLog(environment.config.max_consecutive_failures)
        self._stopping = False
        self._fruitless = 0
        self._waiting = 0
        self._inference_is_down = False
        self._step = 0
        self._evaluation: asyncio.Task[None] | None = None
        self.last_activity = time.monotonic()

    async def run(self, stop: asyncio.Event) -> Termination:
        """Until the run is finished, the environment proves broken, or `stop` is set."""
        ending = asyncio.create_task(self._work(), name="environment")
        asked = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({ending, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await self._wind_down(ending)
            return await self._verdict(ending)
        finally:
            asked.cancel()
            await self._cancel(ending, self._evaluation)
            await self._api_server.disconnect()
            await self._close()

    def unhealthy(self) -> str | None:
        """Waiting for the API server or the trainer is healthy, however long it takes."""
        silence = time.monotonic() - self.last_activity
        is_late = silence > self._environment.config.rollout_timeout_seconds + 60
        is_waiting = self._waiting > 0 or not self._api_server.is_registered
        return f"nothing has happened for {silence:.0f} s" if is_late and not is_waiting else None

    def unready(self) -> str | None:
        if self._stopping:
            return "stopping"
        return None if self._api_server.is_registered else "waiting for the API server and the trainer"

    async def _work(self) -> None:
        await self._guarded(self._environment.setup(), "setup()")
        await self._api_server.register()
        workers = [asyncio.create_task(self._worker()) for _ in range(self._environment.config.concurrency)]
        follower = asyncio.create_task(self._follow())
        try:
            await asyncio.wait({follower, *workers}, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping:
                await asyncio.wait(workers)
            for task in (*workers, follower):
                if task.done():
                    task.result()  # a worker only ends early by failing
        finally:
            await self._cancel(follower, *workers)

    async def _verdict(self, ending: asyncio.Task[None]) -> Termination:
        if not ending.done():
            return self._end("Stopped", "stopped; rollouts in flight were dropped")
        try:
            await ending
        except Exception as error:
            return self._classify(error)
        if self._stopping:
            return self._end("Stopped", "stopped")
        return self._end("Finished", f"the run reached its last step, {self._step}")

    def _classify(self, error: BaseException) -> Termination:
        match error:
            case EnvironmentFailedError():
                return self._end("EnvironmentFailed", str(error))
            case ApiServerRefusedError():
                return self._end(error.reason, str(error))
            case InferenceUnauthorizedError():
                return self._end("Unauthorized", str(error))
        log.error("internal error in the environment runner", exc_info=error)
        return self._end("InternalError", summarize(error))

    def _end(self, reason: Reason, message: str) -> Termination:
        return Termination(reason=reason, message=message, step=self._step)

    async def _wind_down(self, ending: asyncio.Task[None]) -> None:
        """No new rollouts; those in flight may finish within the grace period."""
        self._stopping = True
        if not self._api_server.is_registered:
            return
        log.info("stopping: waiting up to %.0f s for rollouts in flight", self._limits.stop_grace_seconds)
        await asyncio.wait({ending}, timeout=self._limits.stop_grace_seconds)

    async def _cancel(self, *tasks: asyncio.Task[None] | None) -> None:
        known = [task for task in tasks if task is not None]
        running = [task for task in known if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_SECONDS)  # environment code may swallow the cancellation
        for task in known:
            if task.done() and not task.cancelled():
                task.exception()  # the first one has ended the run; asyncio would complain of the others

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._environment.close()
        except Exception as error:
            log.warning("close() of the environment failed: %s", summarize(error))

    async def _guarded(self, call: Awaitable[None], name: str) -> None:
        try:
            await call
        except Exception as error:
            log.error("%s failed", name, exc_info=error)
            raise EnvironmentFailedError(f"{name} of the environment failed: {summarize(error)}") from error

    async def _worker(self) -> None:
        delivery = _Delivery()
        try:
            while not self._stopping:
                await self._contained(self._one_rollout(delivery))
            await self._contained(delivery.wait())
        finally:
            await self._cancel(delivery.task)

    async def _one_rollout(self, delivery: _Delivery) -> None:
        """One item from draw to delivery. Where the API server takes groups at once the next one begins meanwhile, so
        that inference has work; else workers would run ahead of a full queue."""
        group = await self._attempt()
        self._mark_inference(None)
        try:
            await delivery.wait()
        finally:  # whatever became of the group before
            delivery.begin(self._deliver(group))
        if not self._api_server.accepts_at_once:
            await delivery.wait()

    async def _contained(self, work: Awaitable[None]) -> None:
        """Failures are counted, and what comes next waits a little."""
        pause = 0.0
        try:
            await work
        except InferenceUnavailableError as error:
            self._telemetry.count("policy_unavailable")
            self._mark_inference(str(error))
            pause = 1.0
        except (EnvironmentFailedError, ApiServerRefusedError, InferenceUnauthorizedError):
            raise
        except RolloutTimedOutError as error:
            pause = self._record_failure("timed_out", error)
        except InvalidGroupError as error:
            pause = self._record_failure("refused", error)
        except Exception as error:
            pause = self._record_failure("failed", error)
        self.last_activity = time.monotonic()
        await asyncio.sleep(pause)  # also lets others run when a rollout never awaited anything

    def _mark_inference(self, problem: str | None) -> None:
        """Logs once for an outage, not once for each worker and attempt."""
        if problem and not self._inference_is_down:
            log.warning("%s", problem)
        elif not problem and self._inference_is_down:
            log.info("the inference server is available again")
        self._inference_is_down = problem is not None

    async def _attempt(self) -> Group | None:
        seconds = self._environment.config.rollout_timeout_seconds
        deadline = asyncio.timeout(seconds)
        try:
            with self._telemetry.in_flight.track_inprogress(), self._telemetry.rollout_seconds.time():
                async with deadline:
                    item = await self._items.next()
                    group: Group | None = await self._environment.rollout(item, self._client)
                    return group
        except TimeoutError as error:
            if not deadline.expired():  # the environment's own
                raise
            raise RolloutTimedOutError(f"longer than rollout_timeout_seconds = {seconds:g}") from error

    def _record_failure(self, outcome: Outcome, error: Exception) -> float:
        self._telemetry.count(outcome)
        setback = self._failures.failure(error)
        if setback.is_final:
            raise EnvironmentFailedError(
                f"{self._failures.consecutive} rollouts in a row failed; the last: {summarize(error)}"
            ) from error
        return setback.pause_seconds

    async def _deliver(self, group: Group | None) -> None:
        if group is None:
            self._skip("skipped")
            return
        sequences = check_group(group, self._environment.config.group_size)
        if self._environment.config.skip_equal_scores and len(set(group.scores)) == 1:
            self._skip("equal_scores")
            return
        if max(len(s.tokens) for s in sequences) > self._limits.max_tokens:
            self._skip("too_long")
            return
        await self._submit(group, sequences)
        self._failures.success()
        self._fruitless = 0
        self._record(group, sequences)

    async def _submit(self, group: Group, sequences: list[Sequence]) -> None:
        self._waiting += 1
        self._telemetry.waiting.set(self._waiting)
        try:
            await self._api_server.submit(group, sequences)
        finally:
            self._waiting -= 1
            self._telemetry.waiting.set(self._waiting)

    def _record(self, group: Group, sequences: list[Sequence]) -> None:
        versions = [s.policy_version for s in sequences if s.policy_version is not None]
        tokens = sum(len(s.tokens) for s in sequences)
        self._telemetry.sent([float(s) for s in group.scores], tokens, min(versions, default=None))

    def _skip(self, outcome: Outcome) -> None:
        """Not a failure, but an environment that only skips starves the trainer: warn now and then."""
        self._telemetry.count(outcome)
        self._failures.success()
        self._fruitless += 1
        if self._fruitless % 100 == 0:
            log.warning("the last %d rollouts gave no group to train on (%s)", self._fruitless, outcome)

    async def _follow(self) -> None:
        """Watch the run's step: evaluate on the way, and return when the last step is done."""
        every = self._environment.config.evaluate_every_steps
        while not self._stopping:
            previous, self._step = self._step, await self._api_server.current_step()
            self._telemetry.step.set(self._step)
            if self._step >= self._limits.steps():
                return
            if every and self._step // every > previous // every:
                self._start_evaluation()
            await asyncio.sleep(self._limits.follow_seconds)

    def _start_evaluation(self) -> None:
        if self._evaluation is None or self._evaluation.done():
            self._evaluation = asyncio.create_task(self._evaluate(self._step), name="evaluation")

    async def _evaluate(self, step: int) -> None:
        """A failing evaluation is logged and otherwise ignored: training does not depend on it."""
        try:
            async with asyncio.timeout(self._environment.config.rollout_timeout_seconds):
                measures = await self._environment.evaluate(self._client) or {}
            finite = {str(name)[:100]: float(value) for name, value in measures.items() if math.isfinite(value)}
        except Exception as error:
            log.error("evaluate() failed at step %d: %s", step, summarize(error), exc_info=error)
            return
        if not finite:
            return
        self._telemetry.evaluated(finite)
        log.info("evaluation at step %d", step, extra={"step": step, "evaluation": finite})
        await self._api_server.report_evaluation(step, finite)
