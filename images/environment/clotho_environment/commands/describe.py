"""`describe`: the config fields of an environment, for the catalogue and for validation."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from clotho_contract import description as contract
from clotho_contract.description import ConfigField, Description
from clotho_contract.names import TERMINATION_MESSAGE_VARIABLE
from clotho_contract.termination import Termination
from clotho_contract.untrusted import decode
from clotho_environment.atropos.introspect import field_schema
from clotho_environment.entries import NativeEntry
from clotho_environment.pod.isolated import run_isolated
from clotho_environment.pod.status import status_server, stop_signal

SIZE_LIMIT: Final = 4 * 1024**2  # of what a child reports, before it is cut to the contract's size


def describe(entry: NativeEntry) -> Description:
    """Name, description and fields; `fixed` marks those that the entry sets."""
    schema = entry.kind.config_class.model_json_schema()
    required = set(schema.get("required", ())) - set(entry.preset)
    definitions = schema.get("$defs", {})
    return Description(
        name=entry.kind.name,
        class_name=entry.kind.__name__,
        description=(entry.kind.__doc__ or "").strip().partition("\n")[0],
        fields=tuple(
            _field(name, field_schema(field, definitions), entry, is_required=name in required)
            for name, field in schema["properties"].items()
        ),
    )


def _field(name: str, schema: dict[str, Any], entry: NativeEntry, *, is_required: bool) -> ConfigField:
    is_fixed = name in entry.preset
    decided = {"default": entry.preset[name]} if is_fixed else {}
    return msgspec.convert({"name": name, **schema, **decided, "required": is_required, "fixed": is_fixed}, ConfigField)


async def describe_isolated(entry: str, *, seconds: float) -> Description | Termination:
    """In a child, since importing runs untrusted code; its output cannot be mistaken for the description."""
    with tempfile.TemporaryDirectory(prefix="describe-") as folder:
        report, ending_path = Path(folder, "description.json"), Path(folder, "termination.json")
        command = [sys.executable, "-m", "clotho_environment", "describe", "--entry", entry]
        command += ["--output", str(report), "--deadline", f"{seconds * 0.9:g}"]
        outcome = await run_isolated(command, {TERMINATION_MESSAGE_VARIABLE: str(ending_path)}, seconds=seconds)
        if outcome.code == 0 and (body := read_report(report)):
            return _understand(entry, body)
        if (ending := _read_ending(ending_path)) and ending.reason != "Finished":
            return ending
        if outcome.code is None:
            return _failed(f"{entry} could not be imported within {seconds:g} s; {outcome.last_output}")
        return _failed(f"{entry} exited with code {outcome.code} during its import; {outcome.last_output}")


async def check_isolated(config: Path | None, *, seconds: float) -> Termination | None:
    """Whether the run's environment can be made: None, or why not. Its child has the pod's output, and no tokens."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        ending_path = Path(folder, "termination.json")
        command = [sys.executable, "-m", "clotho_environment", "describe"]
        command += ["--output", os.devnull, "--deadline", f"{seconds:g}"]
        command += ["--config", str(config)] if config else []
        child = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, TERMINATION_MESSAGE_VARIABLE: str(ending_path)}
        )
        code = await child.wait()
        if code == 0:
            return None
        return _read_ending(ending_path) or _failed(f"the environment exited with code {code} during its import")


def read_report(path: Path) -> bytes:
    """Empty when the file is missing: environment code may end its program at any point."""
    try:
        with path.open("rb") as file:
            return file.read(SIZE_LIMIT)
    except OSError:
        return b""


def _read_ending(path: Path) -> Termination | None:
    try:
        ending: Termination = decode(read_report(path), Termination)
    except msgspec.MsgspecError:
        return None
    return ending


def _understand(entry: str, body: bytes) -> Description | Termination:
    try:
        return contract.bounded(contract.decode(body))
    except (msgspec.MsgspecError, RecursionError) as error:
        return _failed(f"{entry} returned a description that cannot be read: {error}")


def _failed(message: str) -> Termination:
    return Termination(reason="EnvironmentFailed", message=message)


async def serve_description(entry: str, *, port: int, seconds: float) -> Termination:
    """Serve the description on the status port until stopped; a failure ends at once with its reason."""
    stop = stop_signal()
    found: list[bytes] = []

    async def answer(_: web.Request) -> web.Response:
        if not found:
            raise web.HTTPServiceUnavailable(text="not described yet\n")
        return web.Response(body=found[0], content_type="application/json")

    async with status_server(
        port,
        healthy=lambda: None,
        ready=lambda: None if found else "the environment is being imported",
        registry=CollectorRegistry(),
        routes=[web.get(contract.PATH, answer)],
    ):
        importing = asyncio.create_task(describe_isolated(entry, seconds=seconds))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({importing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not importing.done():
            importing.cancel()
            await asyncio.gather(importing, return_exceptions=True)
            return Termination(reason="Stopped", message="stopped while importing")
        described = importing.result()
        if isinstance(described, Termination):
            return described
        found.append(contract.encode(described))
        await stopping
    return Termination(reason="Finished", message=f"described {entry}")
