"""`serve`, `process` and `describe` for an unchanged Atropos environment file."""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from clotho_contract import description as contract
from clotho_contract.config import EnvironmentConfig, RunConfig
from clotho_contract.description import Description
from clotho_contract.termination import Termination
from clotho_environment.atropos import introspect
from clotho_environment.atropos import launch as launcher
from clotho_environment.atropos.child import Child, child_process
from clotho_environment.atropos.config import INFRASTRUCTURE, render_process, render_serve, to_yaml
from clotho_environment.atropos.gateway import Gateway
from clotho_environment.clients.connections import open_session
from clotho_environment.commands.describe import read_report
from clotho_environment.commands.process import Order
from clotho_environment.commands.serve import check_batch, current_steps, following_servers
from clotho_environment.entries import EntryError
from clotho_environment.pod.isolated import run_isolated
from clotho_environment.pod.status import status_server, stop_signal
from clotho_environment.pod.telemetry import Telemetry
from clotho_environment.pod.tokenizer import tokenizer_path

log = logging.getLogger(__name__)

PYTHON_VARIABLE: Final = "CLOTHO_ATROPOS_PYTHON"  # an interpreter with atroposlib, where it is not this one
STOP_GRACE_SECONDS: Final = 10.0
FOLLOW_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 5.0
MAX_FAILURES: Final = 64  # failed rollouts since the last group was accepted
GROUP_LIMIT: Final = 512 * 1024**2  # bytes of JSON
MAX_REFUSALS: Final = 16  # refused groups since then


async def serve_atropos(
    path: Path, run: RunConfig, place: EnvironmentConfig, *, token: str, port: int, config_path: Path | None
) -> Termination:
    check_batch(run.training.batch_size, place.group_size, place.name)
    telemetry = Telemetry()
    async with open_session(token) as session:
        endpoints = run.endpoints
        gateway = Gateway(
            session,
            telemetry,
            inference=endpoints.policy_urls,
            api_server=endpoints.api_server,
            environment=place.name,
        )
        async with (
            gateway.listening(),
            status_server(port, healthy=gateway.unhealthy, ready=gateway.unready, registry=telemetry.registry),
            following_servers(run, config_path, gateway.use_servers),
        ):
            config = render_serve(
                run,
                place,
                api_server=gateway.api_server,
                inference=gateway.inference,
                tokenizer=tokenizer_path(),
            )
            supervisor = Supervisor(path, config, gateway, lambda: current_steps(run, config_path))
            try:
                return await supervisor.run(stop_signal())
            finally:
                await gateway.disconnect()


class Supervisor:
    """Keeps the child running until the run is finished, a signal stops it, or the child proves broken."""

    def __init__(self, path: Path, config: Mapping[str, Any], gateway: Gateway, steps: Callable[[], int]) -> None:
        self._path = path
        self._config = config
        self._gateway = gateway
        self._steps = steps
        self._step = 0

    async def run(self, stop: asyncio.Event) -> Termination:
        with config_file(self._config) as config:
            command = [*launch(self._path), "serve", "--config", str(config)]
            while True:
                async with child_process(command, {}, grace_seconds=STOP_GRACE_SECONDS) as child:
                    ending = await first_of(self._stopped(stop), self._followed(child), self._ended(child))
                if ending is not None:
                    return ending
                log.info("the environment ended by itself at step %d; starting it again", self._step)
                await asyncio.sleep(RESTART_SECONDS)

    async def _stopped(self, stop: asyncio.Event) -> Termination:
        await stop.wait()
        return Termination(reason="Stopped", message="stopped", step=self._step)

    async def _followed(self, child: Child) -> Termination:
        """Atropos alone would never end: it waits for a step beyond the last."""
        groups, failures_then = 0, 0
        while True:
            step = await self._gateway.current_step()
            if self._gateway.refusal:
                return Termination(reason="Unauthorized", message=self._gateway.refusal)
            self._step = self._step if step is None else step
            if self._step >= self._steps():
                message = f"the run reached its last step, {self._step}"
                return Termination(reason="Finished", message=message, step=self._step)
            if self._gateway.groups_sent > groups:
                groups, failures_then = self._gateway.groups_sent, child.output.failures
            if (failures := child.output.failures - failures_then) >= MAX_FAILURES:
                return self._failed(f"{failures} rollouts in a row failed; the last: {child.output.last_failure}")
            if (refused := self._gateway.groups_refused) >= MAX_REFUSALS:
                return self._failed(f"{refused} groups in a row were refused; the last: {self._gateway.last_refusal}")
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _ended(self, child: Child) -> Termination | None:
        code = await child.wait()
        if code == 0 and not self._gateway.is_registered:
            name = self._path.name
            return self._failed(f"{name} ended without registering; does it call cli() of its environment class?")
        if code == 0:
            return None  # it stops once enough groups are queued; if more are needed it is started again
        await child.drain()
        return self._failed(f"{self._path.name} ended with code {code}: {child.output.last_line()}")

    def _failed(self, message: str) -> Termination:
        return Termination(reason="EnvironmentFailed", message=message, step=self._step)


async def process_atropos(path: Path, order: Order) -> Termination:
    target = order.target
    with tempfile.TemporaryDirectory(prefix="atropos-") as folder:
        output = Path(folder, "groups.jsonl")
        async with open_session(target.key) as session:
            gateway = Gateway(session, Telemetry(), inference=(target.base_url,), api_server="")
            async with gateway.listening():
                config = render_process(
                    order.config,
                    inference=gateway.inference,
                    model=target.model,
                    has_tokens=target.has_tokens,
                    groups=order.groups,
                    output=output,
                    tokenizer=tokenizer_path() if tokenizer_path().is_dir() else None,
                )
                problem = await _process(path, config, order.deadline_seconds)
        written = _copy_lines(output, order)
    if gateway.refusal:
        return Termination(reason="Unauthorized", message=gateway.refusal)
    if written < order.groups:
        message = f"{problem or path.name + ' ended early'}; {written} of {order.groups} groups were written"
        return Termination(reason="EnvironmentFailed", message=message)
    return Termination(reason="Finished", message=f"{written} groups")


async def _process(path: Path, config: Mapping[str, Any], deadline_seconds: float) -> str | None:
    """None when the child did its work, else what went wrong."""
    extra = {"ATROPOS_ALLOW_DUMMY_MANAGED_SERVER": "1", "WANDB_MODE": "disabled"}
    with config_file(config) as file:
        command = [*launch(path), "process", "--config", str(file)]
        async with child_process(command, extra, grace_seconds=STOP_GRACE_SECONDS) as child:
            try:
                async with asyncio.timeout(deadline_seconds):
                    code = await child.wait()
            except TimeoutError:
                return f"the deadline of {deadline_seconds:g} s passed; last output: {child.output.last_line()}"
            await child.drain()
            return f"{path.name} ended with code {code}: {child.output.last_line()}" if code else None


def _copy_lines(output: Path, order: Order) -> int:
    """As many as asked for, and whole lines only: a child that was stopped may have left half a one."""
    if not output.is_file():
        return 0
    written = 0
    with output.open("rb") as file:
        while written < order.groups and (line := file.readline(GROUP_LIMIT)).endswith(b"\n"):
            order.write_line(line)
            written += 1
    return written


@contextmanager
def config_file(config: Mapping[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="atropos-") as folder:
        path = Path(folder, "config.yaml")
        path.write_text(to_yaml(config))
        yield path


async def describe_atropos(path: Path, *, seconds: float) -> Description:
    with tempfile.TemporaryDirectory(prefix="atropos-") as folder:
        report = Path(folder, "description.json")
        command = [python(), introspect.__file__, str(path), str(report)]
        outcome = await run_isolated(command, {"PYTHONUNBUFFERED": "1"}, seconds=seconds)
        body = read_report(report)
    if outcome.code == 0 and body:
        return _read_description(path, body)
    ended = "it took too long" if outcome.code is None else f"its program ended with code {outcome.code}"
    raise EntryError(f"{path} cannot be described: {ended}; {outcome.last_output}")


def _read_description(path: Path, body: bytes) -> Description:
    try:
        found = contract.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EntryError(f"{path} cannot be described: its description cannot be read: {error}") from error
    fields = tuple(msgspec.structs.replace(field, fixed=field.name in INFRASTRUCTURE) for field in found.fields)
    return msgspec.structs.replace(found, fields=fields)


def launch(path: Path) -> list[str]:
    return [python(), launcher.__file__, str(path)]


def python() -> str:
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


async def first_of(*coroutines: Coroutine[Any, Any, Termination | None]) -> Termination | None:
    """The result of whichever ends first; the others are cancelled."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
