"""The trainer's status port: progress, metrics and health for everyone, history and steps for the operator."""

import hmac
from collections.abc import Callable

import msgspec
from aiohttp import web

from clotho_contract import history as history_wire
from clotho_contract import progress as progress_wire
from clotho_contract import steering
from clotho_contract.serving import add_health_routes
from clotho_trainer.reporting.board import Board


def status_application(board: Board, token: str, set_steps: Callable[[int], None]) -> web.Application:
    async def progress(_: web.Request) -> web.Response:
        return web.Response(body=progress_wire.encode(board.progress), content_type="application/json")

    async def history(request: web.Request) -> web.Response:
        """With what the policy wrote, which is not for everyone."""
        if not _is_authorized(request, token):
            return _refused()
        return web.Response(body=history_wire.encode(board.recorder.history()), content_type="application/json")

    async def steps(request: web.Request) -> web.Response:
        if not _is_authorized(request, token):
            return _refused()
        try:
            wanted = steering.decode(await request.read())
        except (msgspec.MsgspecError, RecursionError) as error:
            return web.json_response({"detail": str(error)}, status=422)
        set_steps(wanted)
        return web.json_response({"steps": wanted})

    app = web.Application(client_max_size=1024)
    app.router.add_get("/progress", progress)
    app.router.add_get(history_wire.PATH, history)
    app.router.add_put(steering.STEPS_PATH, steps)
    add_health_routes(app, healthy=board.healthy, ready=board.ready, registry=board.registry)
    return app


def _refused() -> web.Response:
    return web.json_response({"detail": "the operator's token is missing or wrong"}, status=401)


def _is_authorized(request: web.Request, token: str) -> bool:
    """Without a token of its own, a trainer accepts none."""
    scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
    is_same = hmac.compare_digest(presented.strip().encode(errors="surrogateescape"), token.encode())
    return bool(token) and scheme.lower() == "bearer" and is_same
