"""What can be asked without changing anything."""

import time
from typing import Final

import msgspec
from aiohttp import web

from clotho_api_server.http.answers import answer, asked
from clotho_api_server.refusals import UnknownError
from clotho_api_server.state.service import Service
from clotho_api_server.state.shares import environment_status
from clotho_contract.api_protocol import MOST_LISTED, ApiStatus, ConnectedEnvironment, EnvIdentifier, Info

_NO_EXAMPLE: Final = msgspec.json.encode(
    dict.fromkeys(
        (
            "tokens",
            "masks",
            "scores",
            "advantages",
            "ref_logprobs",
            "generation_params",
            "inference_logprobs",
            "messages",
            "images",
        ),
        (),
    )
)


class Information:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def root(self, _: web.Request) -> web.Response:
        return answer({"message": "AtroposLib API"})

    async def info(self, _: web.Request) -> web.Response:
        trainer = self._service.state.registration
        return answer(Info(trainer.batch_size, trainer.max_token_len) if trainer else Info(-1, -1))

    async def wandb_info(self, _: web.Request) -> web.Response:
        trainer = self._service.state.registration
        return answer(
            {"group": trainer.wandb_group if trainer else None, "project": trainer.wandb_project if trainer else None}
        )

    async def latest_example(self, _: web.Request) -> web.Response:
        return web.Response(body=self._service.latest or _NO_EXAMPLE, content_type="application/json")

    async def status(self, _: web.Request) -> web.Response:
        service, state, now = self._service, self._service.state, time.monotonic()
        connected = [env for env in state.environments.values() if env.connected]
        environments = [
            ConnectedEnvironment(
                id=env.id,
                name=env.name,
                seconds_since_heard=round(service.presence.silence(env.id, now), 3),
                queued_groups=sum(state.queued.get(env.id, {}).values()),
            )
            for env in connected[:MOST_LISTED]
        ]
        return answer(
            ApiStatus(
                current_step=state.step,
                queue_size=state.queue_groups,
                queue_bytes=state.queue_bytes,
                queue_sequences=state.sequences,
                full=service.settings.limits.reached_by(state),
                registered=state.registration is not None,
                leased_batches=state.leased_batches,
                last_lease_time=service.last_lease.isoformat() if service.last_lease else None,
                environments_connected=len(connected),
                environments=tuple(environments),
                storage_problem=service.storage_problem or "",
                state_lost=service.state_lost,
            )
        )

    async def status_environment(self, request: web.Request) -> web.Response:
        env_id = (await asked(request, EnvIdentifier)).env_id
        await self._service.record_heartbeat(env_id)
        env = self._service.state.environments.get(env_id)
        if env is None:
            raise UnknownError(f"environment {env_id} is not registered: POST /register-env first")
        return answer(environment_status(self._service.state, env))
