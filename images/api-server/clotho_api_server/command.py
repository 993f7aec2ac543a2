"""The command line: the data folder, the tokens, and a server that stops cleanly on SIGTERM."""

import argparse
import asyncio
import ctypes
import fcntl
import logging
import os
import signal
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import uvloop
from aiohttp import web
from msgspec import Struct

from clotho_api_server.http.access import EVERYTHING_OPEN, VARIABLES, Access, Role
from clotho_api_server.http.app import SERVICE, create_app
from clotho_api_server.state.schema import FormatError
from clotho_api_server.state.service import ServiceSettings
from clotho_api_server.state.shares import Limits
from clotho_contract import config, logs, open_files, termination
from clotho_contract.names import (
    ADMIN_TOKEN_VARIABLE,
    API_SERVER_PORT,
    CONFIG_PATH,
    CONFIG_VARIABLE,
    DATA_PATH,
    DATA_VARIABLE,
    ENVIRONMENT_TOKEN_VARIABLE,
    OPERATOR_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    TRAINER_TOKEN_VARIABLE,
)
from clotho_contract.termination import Termination

log = logging.getLogger(__name__)
CORS_VARIABLE: Final = "CLOTHO_CORS_ORIGINS"
KEEP_ALIVE_SECONDS: Final = 75.0
GRACE_SECONDS: Final = 20.0
KEPT_BYTES: Final = 64 * 1024**2
_M_TOP_PAD: Final = -2

HELP: Final = f"""\
Collects scored groups from environments and hands batches to the trainer, over Atropos' wire protocol.
A group is answered `received` only once it is on disk; a batch counts once the trainer acknowledges it.

Try it on your own machine:
  python -m clotho_api_server --data /tmp/run --insecure-no-auth
  curl localhost:{API_SERVER_PORT}/status

Each role has a token: ${ENVIRONMENT_TOKEN_VARIABLE} submits groups, ${TRAINER_TOKEN_VARIABLE} takes batches,
${OPERATOR_TOKEN_VARIABLE} reads the status and ${ADMIN_TOKEN_VARIABLE} may delete everything (GET /reset_data).
${TOKEN_VARIABLE}, when set, serves the first three, for clients that share one token.
Clients send a token as a bearer token or as the password in http://any:token@host:{API_SERVER_PORT}.
The HTTP interface is described at /openapi.json.
"""


class Options(Struct, frozen=True):
    config: Path | None
    data: Path
    host: str
    port: int
    insecure: bool
    origins: tuple[str, ...]


class StartError(Exception):
    """Trying again cannot help; the message says what to change."""


def parse_options(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        "python -m clotho_api_server", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"the run's config (default: ${CONFIG_VARIABLE}, else {CONFIG_PATH} where it exists, else default limits)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        default=Path(os.environ.get(DATA_VARIABLE, str(DATA_PATH))),
        help="where the queue is kept; belongs to one server at a time (default: %(default)s)",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: %(default)s)")  # noqa: S104
    parser.add_argument("--port", type=int, default=API_SERVER_PORT, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="accept every request without a token, /reset_data included; for local use only",
    )
    parser.add_argument(
        "--cors-origins",
        metavar="ORIGINS",
        default=os.environ.get(CORS_VARIABLE, ""),
        help=f"origins whose pages may send requests, separated by commas; * allows all, as Atropos' server does "
        f"(default: ${CORS_VARIABLE}, else none)",
    )
    chosen = parser.parse_args(arguments)
    origins = tuple(filter(None, (origin.strip() for origin in chosen.cors_origins.split(","))))
    return Options(chosen.config, chosen.data, chosen.host, chosen.port, chosen.insecure_no_auth, origins)


def settings_of(options: Options) -> ServiceSettings:
    """Defaults apply only where no config is named and none is mounted."""
    if options.config is None and not os.environ.get(CONFIG_VARIABLE) and not CONFIG_PATH.exists():
        server, batches, staleness = config.ApiServerConfig(), 3, 0
    else:
        run = config.load(options.config)
        server, training = run.api_server, run.training
        batches, staleness = training.max_off_policy_batches, training.max_staleness
    limits = Limits(
        max_queue_bytes=server.max_queue_bytes,
        max_off_policy_batches=batches,
        max_staleness=staleness,
        lease_seconds=float(server.lease_seconds),
    )
    return ServiceSettings(limits, server.max_body_bytes, float(server.environment_timeout_seconds))


def access_of(options: Options) -> Access:
    """A token per role, and $CLOTHO_TOKEN for all of them but the administrator's."""
    if options.insecure:
        return EVERYTHING_OPEN
    shared = os.environ.get(TOKEN_VARIABLE, "")
    tokens: dict[Role, tuple[str, ...]] = {}
    for role, variable in VARIABLES.items():
        own = os.environ.get(variable, "")
        tokens[role] = (own,) if role == "administrator" else (own, shared)
    missing = [VARIABLES[role] for role, known in tokens.items() if role != "administrator" and not any(known)]
    if missing:
        raise StartError(
            f"${' and $'.join(missing)} not set, and no ${TOKEN_VARIABLE} for every role; "
            "for local use without a token pass --insecure-no-auth"
        )
    return Access(tokens)


def claim(folder: Path) -> IO[str]:
    """Two servers on one folder would deliver everything twice."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise StartError(
            f"cannot use the data folder {folder}: {error.strerror}; choose another with --data"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StartError(f"another server is using {folder}; give this one a folder of its own with --data") from error
    return lock


def runner_of(app: web.Application) -> web.AppRunner:
    """Bodies are expanded off the event loop, and a handler ends when its client goes away."""
    return web.AppRunner(
        app,
        access_log=None,
        auto_decompress=False,
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        shutdown_timeout=GRACE_SECONDS,
    )


async def serve(options: Options, settings: ServiceSettings, access: Access) -> int:
    """Until a signal asks to stop. Returns the step the run had reached."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    app = create_app(options.data, settings, access, options.origins)
    runner = runner_of(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port, backlog=1024).start()
        log.info("listening on %s:%d", options.host, options.port)
        await stop.wait()
    finally:
        await runner.cleanup()
    return app[SERVICE].state.step


def keep_freed_memory() -> None:
    """Megabytes come and go with every group: returning them to the kernel each time costs a sixth of the CPU."""
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_TOP_PAD, KEPT_BYTES)


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    logs.set_up()
    open_files.raise_limit()
    keep_freed_memory()
    sys.setswitchinterval(0.001)  # a thread that checks a large body gives way to the event loop sooner
    try:
        settings, access, lock = settings_of(options), access_of(options), claim(options.data)
        with lock:
            step = uvloop.run(serve(options, settings, access))
    except (StartError, FormatError, config.ConfigError) as error:
        return _give_up(Termination(reason="InvalidConfig", message=str(error)))
    except (OSError, sqlite3.Error) as error:
        return _give_up(Termination(reason="InternalError", message=f"cannot serve: {error}"))
    termination.write(Termination(reason="Stopped", message="stopped by a signal; everything is on disk", step=step))
    return 0


def _give_up(ending: Termination) -> int:
    log.error(ending.message)
    termination.write(ending)
    return 2
