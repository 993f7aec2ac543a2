"""Weights & Biases' HTTP API as far as its SDK needs it: it records what is sent."""

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Body = dict[str, Any]


class WandbStandIn:
    def __init__(self) -> None:
        self.url = ""
        self.run: Body = {}  # the variables of the first request that creates it
        self.rows: list[Body] = []  # of the run's history
        self.exit_code: int | None = None
        self.authorizations: set[str] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["WandbStandIn"]:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/graphql", self._graphql)
        app.router.add_post("/files/{entity}/{project}/{run}/file_stream", self._file_stream)
        app.router.add_route("*", "/{path:.*}", self._anything)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _graphql(self, request: web.Request) -> web.Response:
        self.authorizations.add(request.headers.get("Authorization", ""))
        asked = await _json(request)
        values = asked.get("variables") or {}
        if "upsertBucket" in asked["query"]:
            self.run = self.run or values
            return web.json_response({"data": {"upsertBucket": {"bucket": _bucket(self.run), "inserted": True}}})
        if "createRunFiles" in asked["query"]:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in values["files"]]
            return web.json_response({"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}})
        return web.json_response({"data": {}})

    async def _file_stream(self, request: web.Request) -> web.Response:
        sent = await _json(request)
        history = sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", ())
        self.rows += [json.loads(line) for line in history]
        if sent.get("complete"):
            self.exit_code = sent.get("exitcode")
        return web.json_response({})

    async def _anything(self, request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({})


async def _json(request: web.Request) -> Body:
    raw = await request.read()
    found: Body = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    return found


def _bucket(run: Body) -> Body:
    project = {"id": "p", "name": run["project"], "entity": {"id": "e", "name": run["entity"]}}
    return {"id": "1", "name": run["name"], "displayName": run["displayName"], "config": "{}", "project": project}
