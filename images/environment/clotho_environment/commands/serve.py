"""`serve`: everything around the runner: config, status port, signals and watchdog."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from math import ceil
from pathlib import Path
from typing import Any, Final

import clotho_contract.config as run_config
from clotho_contract import termination
from clotho_contract.api_protocol import RegisterEnv
from clotho_contract.config import ConfigError, EnvironmentConfig, RunConfig
from clotho_contract.termination import Termination
from clotho_contract.trajectory import batch_size_problem
from clotho_environment.clients.api_server import ApiServer
from clotho_environment.clients.connections import open_session
from clotho_environment.entries import NativeEntry
from clotho_environment.pod.status import status_server, stop_signal
from clotho_environment.pod.telemetry import Telemetry
from clotho_environment.pod.watchdog import Watchdog
from clotho_environment.rollouts.runner import Limits, Runner
from clotho_environment.sdk.environment import (
    DEFAULT_CONCURRENCY,
    MOST_CONCURRENT,
    AnyEnvironment,
    InvalidConfigError,
    build,
    validated,
)
from clotho_environment.sdk.sampling import SamplingClient

log = logging.getLogger(__name__)

FOLLOW_SECONDS: Final = 5.0


async def serve(
    entry: NativeEntry, run: RunConfig, place: EnvironmentConfig, *, token: str, port: int, config_path: Path | None
) -> Termination:
    environment = build(entry.kind, config_fields(entry, run, place))
    check_batch(run.training.batch_size, environment.config.group_size, place.name)
    telemetry = Telemetry()
    async with open_session(token) as inference, open_session(token, total_seconds=120) as trajectories:
        policy = SamplingClient(
            inference, run.endpoints.policy_urls, model=run.model.name, defaults=environment.config.sampling
        )
        runner = Runner(
            environment,
            policy,
            ApiServer(trajectories, run.endpoints.api_server, _registration(environment, run, place)),
            Limits(max_tokens=run.training.max_tokens, steps=lambda: current_steps(run, config_path)),
            telemetry,
        )
        async with (
            status_server(port, healthy=runner.unhealthy, ready=runner.unready, registry=telemetry.registry),
            _watched(environment),
            following_servers(run, config_path, policy.use_servers),
        ):
            return await runner.run(stop_signal())


def config_fields(entry: NativeEntry, run: RunConfig, place: EnvironmentConfig) -> dict[str, Any]:
    """With defaults that depend on the run, where neither the run nor the author of the environment chooses."""
    known = entry.kind.config_class.model_fields
    given = {**place.config_for(known), **entry.preset}
    defaults: dict[str, int] = {}
    longest, group_size = known["max_tokens"].default, given.get("group_size", known["group_size"].default)
    if isinstance(longest, int):  # no longer than a sequence that the trainer takes: small models refuse to write one
        defaults["max_tokens"] = min(longest, run.training.max_tokens)
    if known["concurrency"].default == DEFAULT_CONCURRENCY and isinstance(group_size, int) and group_size > 0:
        defaults["concurrency"] = groups_in_flight(run, place, group_size)
    return defaults | given


def groups_in_flight(run: RunConfig, place: EnvironmentConfig, group_size: int) -> int:
    """This environment's share of the sequences in flight; but of no more than twice what is decoded at once."""
    share = place.weight / (sum(each.weight for each in run.environments) or place.weight)
    decoded = run.decoded_together * max(len(run.endpoints.policy_urls), 1)
    return min(max(ceil(min(run.sequences_in_flight, 2 * decoded) * share / group_size), 1), MOST_CONCURRENT)


def check_config(entry: NativeEntry, run: RunConfig, place: EnvironmentConfig) -> None:
    """What `serve` would refuse."""
    config = validated(entry.kind, config_fields(entry, run, place))
    check_batch(run.training.batch_size, config.group_size, place.name)


def check_batch(batch_size: int, group_size: int, name: str) -> None:
    if problem := batch_size_problem(batch_size, group_size, name):
        raise InvalidConfigError(problem)


@asynccontextmanager
async def _watched(environment: AnyEnvironment) -> AsyncIterator[None]:
    limit = environment.config.rollout_timeout_seconds
    watchdog = Watchdog(_give_up, warn_seconds=min(5.0, limit), limit_seconds=limit)
    async with _meanwhile(watchdog.watch()):
        yield


def _give_up(problem: str) -> None:
    """Called from a thread while the loop is blocked: no clean end is possible, but one with a reason is."""
    log.error("%s", problem)
    termination.write(Termination(reason="EnvironmentFailed", message=problem))
    os._exit(1)


def _registration(environment: AnyEnvironment, run: RunConfig, place: EnvironmentConfig) -> RegisterEnv:
    return RegisterEnv(
        desired_name=place.name,
        group_size=environment.config.group_size,
        max_token_length=run.training.max_tokens,
        weight=place.weight,
        min_batch_allocation=place.min_batch_allocation,
    )


def current_steps(run: RunConfig, config_path: Path | None) -> int:
    """Read again each time, because `training.steps` of a live run may be raised."""
    return _current(run, config_path).training.steps


@asynccontextmanager
async def following_servers(
    run: RunConfig, config_path: Path | None, use: Callable[[Sequence[str]], None]
) -> AsyncIterator[None]:
    """`inference.replicas` of a live run may be changed."""

    async def follow() -> None:
        known = run.endpoints.policy_urls
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            urls = _current(run, config_path).endpoints.policy_urls
            if urls and urls != known:
                log.info("the policy is now served by %s", ", ".join(urls))
                use(urls)
                known = urls

    async with _meanwhile(follow()):
        yield


@asynccontextmanager
async def _meanwhile(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _current(run: RunConfig, config_path: Path | None) -> RunConfig:
    try:
        return run_config.load(config_path)
    except ConfigError:
        return run  # a half-written file; the next read gets all of it
