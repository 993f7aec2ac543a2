"""The part of Ollama's documented API that registers a model, taken strictly: anything undocumented is refused."""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_NAME = re.compile(r"^([\w.-]+/){0,2}[\w.-]+(:[\w.-]+)?$")
_CREATE_FIELDS = {
    "model",
    "from",
    "files",
    "adapters",
    "template",
    "license",
    "system",
    "parameters",
    "messages",
    "stream",
    "quantize",
}


@dataclass
class Ollama:
    blobs: dict[str, bytes] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)  # statuses to answer with first
    last_line: dict[str, str] = field(default_factory=lambda: {"status": "success"})

    def app(self) -> web.Application:
        app = web.Application(client_max_size=0, middlewares=[self._middleware()])
        app.router.add_route("HEAD", "/api/blobs/{digest}", self._has_blob)
        app.router.add_route("POST", "/api/blobs/{digest}", self._take_blob)
        app.router.add_route("POST", "/api/create", self._create)
        return app

    def _middleware(self) -> Any:
        @web.middleware
        async def note(request: web.Request, handler: Any) -> web.StreamResponse:
            self.requests.append(f"{request.method} {request.path.split('/')[2]}")
            if self.failures:
                return web.json_response({"error": "not now"}, status=self.failures.pop(0))
            answer: web.StreamResponse = await handler(request)
            return answer

        return note

    async def _has_blob(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["digest"] in self.blobs else 404)

    async def _take_blob(self, request: web.Request) -> web.Response:
        digest = request.match_info["digest"]
        if not _DIGEST.match(digest):
            return web.json_response({"error": "invalid digest format"}, status=400)
        digesting, body = hashlib.sha256(), bytearray()
        async for chunk in request.content.iter_any():
            digesting.update(chunk)
            body += chunk
        if f"sha256:{digesting.hexdigest()}" != digest:
            return web.json_response({"error": "digest does not match the content"}, status=400)
        self.blobs[digest] = bytes(body)
        return web.Response(status=201)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if problem := self._problem(body):
            return web.json_response({"error": problem}, status=400)
        stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await stream.prepare(request)
        for status in ("parsing GGUF", "writing manifest"):
            await stream.write(json.dumps({"status": status}).encode() + b"\n")
        if self.last_line.get("status") == "success":
            self.models[body["model"]] = body
        await stream.write(json.dumps(self.last_line).encode() + b"\n")
        return stream

    def _problem(self, body: dict[str, Any]) -> str | None:
        if unknown := set(body) - _CREATE_FIELDS:
            return f"unknown fields: {sorted(unknown)}"
        if not _NAME.match(body.get("model", "")):
            return "invalid model name"
        files = body.get("files") or {}
        if not files or any("/" in name for name in files):
            return "neither 'from' or 'files' was specified"
        for digest in files.values():
            if digest not in self.blobs:
                return f"blob not found: {digest}"
            if not self.blobs[digest].startswith(b"GGUF"):
                return "only files of type gguf or safetensors are supported"
        stops = body.get("parameters", {}).get("stop", [])
        if not isinstance(body.get("template", ""), str) or not all(isinstance(stop, str) for stop in stops):
            return "template and stops are texts"
        return None
