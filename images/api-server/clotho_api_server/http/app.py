"""Routes, access and error answers: the whole HTTP application."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from clotho_api_server.http.access import Access, Handler
from clotho_api_server.http.answers import answer
from clotho_api_server.http.batches import Batches
from clotho_api_server.http.cors import allow_origins
from clotho_api_server.http.evaluations import Evaluations
from clotho_api_server.http.information import Information
from clotho_api_server.http.intake import Intake
from clotho_api_server.http.openapi import document
from clotho_api_server.http.registration import Registration
from clotho_api_server.refusals import RefusalError
from clotho_api_server.state.service import Service, ServiceSettings
from clotho_contract.api_protocol import EVALUATIONS_PATH
from clotho_contract.serving import add_health_routes

log = logging.getLogger(__name__)
SERVICE = web.AppKey("service", Service)


def create_app(
    folder: Path, settings: ServiceSettings, access: Access, origins: Collection[str] = ()
) -> web.Application:
    """To be called on the event loop that will serve it."""
    app = web.Application(middlewares=[_refusals_as_json, _guarded_by(access)])
    if origins:
        allow_origins(app, origins)
    service = app[SERVICE] = Service(folder, settings)
    add_routes(app, service)
    add_health_routes(
        app,
        healthy=lambda: service.problem,
        ready=lambda: service.problem or service.storage_problem or ("shutting down" if service.closing else None),
        registry=service.metrics.registry,
    )
    app.cleanup_ctx.append(_running)
    app.on_shutdown.append(_answer_those_who_wait)
    return app


def add_routes(app: web.Application, service: Service) -> None:
    registration, information = Registration(service), Information(service)
    intake, batches, evaluations = Intake(service), Batches(service), Evaluations(service)

    async def openapi(_: web.Request) -> web.Response:
        return answer(document())

    app.add_routes(
        [
            web.get("/", information.root),
            web.get("/info", information.info),
            web.get("/wandb_info", information.wandb_info),
            web.get("/status", information.status),
            web.get("/status-env", information.status_environment),
            web.get("/latest_example", information.latest_example),
            web.get("/openapi.json", openapi),
            web.post("/register", registration.register),
            web.post("/register-env", registration.register_environment),
            web.post("/disconnect-env", registration.disconnect_environment),
            web.get("/reset_data", registration.reset),
            web.post("/scored_data", intake.scored_data),
            web.post("/scored_data_list", intake.scored_data_list),
            web.get(EVALUATIONS_PATH, evaluations.listed),
            web.post(EVALUATIONS_PATH, evaluations.add),
            web.get("/batch", batches.plain, allow_head=False),
            web.post("/lease", batches.lease),
            web.post("/lease/{id}/renew", batches.renew),
            web.post("/lease/{id}/ack", batches.acknowledge),
            web.post("/lease/{id}/release", batches.release),
            web.post("/checkpointed", batches.checkpointed),
        ]
    )


async def _running(app: web.Application) -> AsyncIterator[None]:
    service = app[SERVICE]
    await service.start()
    sweeping = asyncio.create_task(service.sweep())
    yield
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
    await service.close()


async def _answer_those_who_wait(app: web.Application) -> None:
    app[SERVICE].begin_closing()


def _guarded_by(access: Access):  # type: ignore[no-untyped-def]
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        access.check(resource.canonical if resource else request.path, request.headers.get("Authorization"))
        return await handler(request)

    return guard


@web.middleware
async def _refusals_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusalError as refusal:
        response = answer(refusal.body, refusal.status)
        response.headers.update(refusal.headers)
        return response
    except web.HTTPException as error:
        return answer({"detail": error.reason}, error.status)
    except (ConnectionError, TimeoutError):
        log.info("the client of %s %s went away", request.method, request.path)
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return answer({"detail": "internal error; the server's log says more"}, 500)
