"""`/healthz`, `/readyz` and `/metrics`, the same on every container."""

from collections.abc import Callable

import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry

Check = Callable[[], str | None]
"""None when all is well, else one sentence that says what is not."""


def add_health_routes(app: web.Application, *, healthy: Check, ready: Check, registry: CollectorRegistry) -> None:
    """Health is open to everyone: kubelets and Prometheus carry no token."""

    def answer(check: Check) -> web.Response:
        problem = check()
        return web.Response(status=503, text=problem + "\n") if problem else web.Response(text="ok\n")

    async def healthz(_: web.Request) -> web.Response:
        return answer(healthy)

    async def readyz(_: web.Request) -> web.Response:
        return answer(ready)

    async def metrics(_: web.Request) -> web.Response:
        body = prometheus_client.generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
