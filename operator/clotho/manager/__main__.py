"""`python -m clotho.manager`: the operator's process."""

import asyncio
import faulthandler
import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import uvloop
from prometheus_client import CollectorRegistry, disable_created_metrics

from clotho.cluster import login
from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import CredentialsError
from clotho.manager import settings as operator_settings
from clotho.manager.manager import Manager
from clotho.manager.metrics import Metrics
from clotho.manager.settings import Settings, SettingsError
from clotho_contract import logs, open_files

log = logging.getLogger("clotho")
SHUTDOWN_SECONDS = 25.0  # less than the pod's grace period
_BROKEN_TLS = "Fatal error on SSL protocol"  # uvloop's words


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A broken connection is one line: the request on it fails by itself, and is tried again."""
    if str(context.get("message", "")).startswith(_BROKEN_TLS):
        log.warning("a connection broke: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)


async def _run(settings: Settings) -> None:
    asyncio.get_running_loop().set_exception_handler(report_loop_error)
    who = login.load(Path(settings.api.kubeconfig) if settings.api.kubeconfig else None)
    metrics = Metrics(CollectorRegistry())
    async with ApiClient(
        who,
        timeout_seconds=settings.api.timeout_seconds,
        connections=settings.api.connections,
        on_answer=lambda verb, code: metrics.api_requests.labels(verb, code).inc(),
    ) as client:
        try:
            await Manager(settings, who, client, metrics, at_stop=_limit_shutdown).run()
        except Exception:
            log.exception("the operator has failed")
            _leave(1)
        _leave(0)


def _leave(code: int) -> NoReturn:
    """Not by way of the event loop's end: watches of Kopf's that are left do not end when cancelled."""
    logging.shutdown()
    os._exit(code)


def _limit_shutdown() -> None:
    """Whatever hangs, the process ends, and its stacks are in the log."""
    faulthandler.dump_traceback_later(SHUTDOWN_SECONDS, exit=True)


def main() -> int:
    try:
        settings = operator_settings.parse(sys.argv[1:])
    except SettingsError as error:
        print(f"clotho-operator: {error}", file=sys.stderr)
        return 2
    logs.set_up(settings.log.level)
    open_files.raise_limit()
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings))
    except CredentialsError as error:
        log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
