"""Registration of trainers and environments."""

import logging

from aiohttp import web

from clotho_api_server.http.answers import answer, asked
from clotho_api_server.refusals import UnknownError
from clotho_api_server.state.service import Service
from clotho_contract.api_protocol import EnvIdentifier, Register, Registered, RegisterEnv

log = logging.getLogger(__name__)


class Registration:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def register(self, request: web.Request) -> web.Response:
        trainer = await asked(request, Register)
        number = await self._service.change(lambda ledger: ledger.register(trainer))
        if trainer.discards_state:
            log.warning("the state was older than the trainer's: queued groups were deleted")
        log.info("trainer registered", extra={"batch_size": trainer.batch_size, "starting_step": trainer.starting_step})
        return answer(Registered(number))

    async def register_environment(self, request: web.Request) -> web.Response:
        environment = await asked(request, RegisterEnv)
        if not self._service.state.started:
            return answer({"status": "wait for trainer to start"})
        registered = await self._service.change(lambda ledger: ledger.register_environment(environment))
        await self._service.record_heartbeat(registered.env_id)
        log.info("environment registered", extra={"environment": registered.wandb_name, "env_id": registered.env_id})
        return answer(registered)

    async def disconnect_environment(self, request: web.Request) -> web.Response:
        leaving = await asked(request, EnvIdentifier)
        try:
            await self._service.change(lambda ledger: ledger.set_connected(leaving.env_id, False))
        except UnknownError as error:
            return answer({"status": "failure", "error": error.detail})
        return answer({"status": "success"})

    async def reset(self, _: web.Request) -> web.Response:
        await self._service.change(lambda ledger: ledger.reset())
        self._service.latest = None
        log.warning("all data was deleted on request")
        return web.Response(text="Reset successful")
