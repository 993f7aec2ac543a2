"""`process`: a few groups into a file, without API server or trainer; the quick test of an environment."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from clotho_contract.termination import Reason, Termination
from clotho_environment.clients.connections import open_session
from clotho_environment.entries import NativeEntry
from clotho_environment.rollouts.failures import FailureLog, summarize
from clotho_environment.rollouts.items import ItemStream
from clotho_environment.sdk.environment import AnyEnvironment, build
from clotho_environment.sdk.group import Group, check_group, check_scores, encode_group
from clotho_environment.sdk.sampling import (
    InferenceError,
    InferenceUnauthorizedError,
    InferenceUnavailableError,
    SamplingClient,
)

log = logging.getLogger(__name__)

WriteLine = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Target:
    """The model under test: any OpenAI-compatible server; only some return token ids."""

    base_url: str
    model: str
    key: str
    has_tokens: bool


@dataclass(frozen=True, slots=True)
class Order:
    """What to produce: this many groups with this config, from this model, before the deadline."""

    config: Mapping[str, Any]
    target: Target
    write_line: WriteLine
    groups: int
    deadline_seconds: float


async def process_entry(entry: NativeEntry, order: Order) -> Termination:
    environment = build(entry.kind, {**order.config, **entry.preset})
    async with open_session(order.target.key) as session:
        client = SamplingClient(
            session,
            order.target.base_url,
            model=order.target.model,
            defaults=environment.config.sampling,
            want_tokens=order.target.has_tokens,
        )
        return await process(environment, client, order)


async def process(environment: AnyEnvironment, client: SamplingClient, order: Order) -> Termination:
    """Writes each group as soon as it is made, so that a deadline loses only what was not finished."""
    producer = _Producer(environment, client, order.write_line, want_tokens=order.target.has_tokens)
    work = asyncio.create_task(producer.produce_all(order.groups))
    try:
        await asyncio.wait({work}, timeout=order.deadline_seconds)
        if not work.done():
            return Termination(reason="EnvironmentFailed", message=producer.explain_lateness(order))
        await work
    except Exception as error:
        return Termination(reason=_reason(error), message=summarize(error))
    finally:
        work.cancel()
        await environment.close()
    return Termination(reason="Finished", message=f"{producer.written} groups")


def _reason(error: Exception) -> Reason:
    match error:
        case InferenceUnauthorizedError():
            return "Unauthorized"
        case InferenceUnavailableError():
            return "DependencyUnavailable"
    return "EnvironmentFailed"


class _Producer:
    def __init__(
        self, environment: AnyEnvironment, client: SamplingClient, write_line: WriteLine, *, want_tokens: bool
    ) -> None:
        self._environment = environment
        self._client = client
        self._write_line = write_line
        self._want_tokens = want_tokens
        self._items = ItemStream(environment)
        self._failures = FailureLog(environment.config.max_consecutive_failures)
        self._last_problem = ""
        self.written = 0

    async def produce_all(self, groups: int) -> None:
        await self._environment.setup()
        workers = min(groups, self._environment.config.concurrency)
        shares = [groups // workers + (i < groups % workers) for i in range(workers)]
        await asyncio.gather(*map(self._produce, shares))

    async def _produce(self, groups: int) -> None:
        while groups:
            try:
                line = self._line(await self._environment.rollout(await self._items.next(), self._client))
            except (InferenceUnauthorizedError, InferenceUnavailableError):
                raise
            except Exception as error:
                if isinstance(error, InferenceError) and not self.written:
                    raise  # a wrong model or address: the next request would be answered the same way
                self._last_problem = summarize(error)
                setback = self._failures.failure(error)
                if setback.is_final:
                    raise
                await asyncio.sleep(setback.pause_seconds)
                continue
            self._failures.success()
            if line is not None:
                self._write_line(line + b"\n")
                self.written += 1
                groups -= 1

    def explain_lateness(self, order: Order) -> str:
        late = f"the deadline of {order.deadline_seconds:g} s passed after {self.written} of {order.groups} groups"
        return f"{late}; the last failure: {self._last_problem}" if self._last_problem else late

    def _line(self, group: Group | None) -> bytes | None:
        if group is None:
            return None
        size = self._environment.config.group_size
        if self._want_tokens:
            return encode_group(group, check_group(group, size), None)
        check_scores(group, size)
        texts = [getattr(attempt, "text", "") for attempt in group.attempts]
        prompts = [getattr(attempt, "prompt", "") for attempt in group.attempts]
        line = {"scores": group.scores, "prompts": prompts, "texts": texts, "messages": group.messages}
        return msgspec.json.encode(line)
