"""The status port with its probes and metrics, and the signals that stop a pod."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry

from clotho_contract.serving import Check, add_health_routes


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@asynccontextmanager
async def status_server(
    port: int, *, healthy: Check, ready: Check, registry: CollectorRegistry, routes: Sequence[web.RouteDef] = ()
) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes(routes)
    add_health_routes(app, healthy=healthy, ready=ready, registry=registry)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 - the kubelet probes the pod's address
        yield
    finally:
        await runner.cleanup()
