"""The inference port over a tiny policy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from clotho_trainer.inference.server import InferenceServer
from clotho_trainer.inference.service import Service
from integration.trainer.tiny import backend, config

TOKEN = "the-run's-token"
Client = TestClient[Any, Any]


@asynccontextmanager
async def served(model: Path, work: Path) -> AsyncIterator[Client]:
    policy = backend(config(model), work)
    server = InferenceServer(TOKEN)
    server.service = Service(policy.engine, policy.tokenizer, "tiny/model", policy.context, policy.vocabulary, 1.0)
    await policy.engine.start()
    async with TestClient(TestServer(server.application())) as running:
        yield running
    await policy.engine.stop()
