"""The API server inside the test's own event loop, and atroposlib beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from clotho_api_server.command import runner_of
from clotho_api_server.http.access import EVERYTHING_OPEN, Access
from clotho_api_server.http.app import SERVICE, create_app
from clotho_api_server.state.service import Service, ServiceSettings
from clotho_api_server.state.shares import Limits
from rig.trajectory_servers import ToolUnavailableError, atropos_python

SETTINGS = ServiceSettings(Limits(max_queue_bytes=10**9, max_off_policy_batches=100), hold_when_full=0.1)


class Api:
    """A client of one running server."""

    def __init__(self, url: str, session: aiohttp.ClientSession, service: Service) -> None:
        self.url = url
        self.session = session
        self.service = service

    async def get(self, path: str, **options: Any) -> Any:
        async with self.session.get(self.url + path, **options) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def post(self, path: str, body: Any = None, *, status: int = 200, **options: Any) -> Any:
        async with self.session.post(self.url + path, json=body, **options) as response:
            text = await response.text()
            assert response.status == status, f"{response.status}: {text}"
            return await response.json() if text else None

    async def register(self, batch_size: int = 4, **changes: Any) -> Any:
        return await self.post("/register", {**TRAINER, "batch_size": batch_size, **changes})

    async def register_environment(self, **changes: Any) -> int:
        await self.get("/batch")
        return int((await self.post("/register-env", {**ENVIRONMENT, **changes}))["env_id"])


TRAINER = {
    "wandb_group": "group",
    "wandb_project": "project",
    "batch_size": 4,
    "max_token_len": 64,
    "checkpoint_dir": "/checkpoints",
    "save_checkpoint_interval": 5,
    "starting_step": 0,
    "num_steps": 100,
}
ENVIRONMENT = {"max_token_length": 64, "desired_name": "env", "weight": 1.0, "group_size": 2}


class Servers:
    """Starts servers that end with the test. One folder may be served again after `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @asynccontextmanager
    async def serving(
        self,
        *,
        access: Access | None = None,
        limits: dict[str, Any] | None = None,
        origins: tuple[str, ...] = (),
        **settings: Any,
    ) -> AsyncIterator[Api]:
        chosen = replace(SETTINGS, limits=replace(SETTINGS.limits, **(limits or {})), **settings)
        async with AsyncExitStack() as stack:
            app = create_app(self.folder, chosen, access or EVERYTHING_OPEN, origins)
            runner = runner_of(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            session = await stack.enter_async_context(aiohttp.ClientSession())
            port = runner.addresses[0][1]
            yield Api(f"http://127.0.0.1:{port}", session, app[SERVICE])


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path / "data")


@pytest.fixture
async def api(servers: Servers) -> AsyncIterator[Api]:
    async with servers.serving() as running:
        yield running


@pytest.fixture(scope="session")
def atropos() -> Path:
    try:
        return atropos_python()
    except ToolUnavailableError as error:
        pytest.skip(f"NOT COMPARED WITH ATROPOSLIB: it cannot be installed here ({error})")
