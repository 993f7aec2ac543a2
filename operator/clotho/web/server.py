"""HTTP: the page's files, its data as JSON, and the same data as server-sent events that follow each change."""

import asyncio
import mimetypes
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from clotho.cluster.outcomes import ApiError, Forbidden, NotFound, Unauthorized
from clotho.web.access import Access, LocalAccess, Reader, TooManyPeopleError
from clotho.web.logs import run_logs
from clotho.web.pages import (
    MOST_COMPARED,
    Page,
    Parts,
    RunName,
    comparison_page,
    encoded,
    joined,
    run_page,
    table_page,
)
from clotho.web.protection import HEADERS, bearer, refusal

STATIC: Final = Path(__file__).parent / "static"
EVENTS: Final = "text/event-stream"
HEARTBEAT_SECONDS: Final = 15.0
SETTLE_SECONDS: Final = 0.25  # several changes at once are sent together
LARGEST_BODY: Final = 4096
MOST_NAMED: Final = 20
NAME: Final = "[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?"  # of an object: nothing else becomes part of a path
_NAME: Final = re.compile(NAME)
_RUN: Final = re.compile(f"{NAME}/{NAME}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Opened = AbstractAsyncContextManager[Page]


class Server:
    """`hosts`: the names that the server answers for; empty means all, where every request needs a token anyway."""

    def __init__(self, access: Access, *, hosts: Collection[str] = (), title: str = "") -> None:
        self._access, self._hosts, self._title = access, hosts, title

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._protect], client_max_size=LARGEST_BODY)
        run = f"{{namespace:{NAME}}}/{{name:{NAME}}}"
        app.add_routes(
            [
                web.get("/healthz", self._healthy),
                web.get("/api/config", self._config),
                web.post("/api/key", self._key),
                web.get("/api/runs", self._runs),
                web.get(f"/api/runs/{run}", self._run),
                web.get(f"/api/runs/{run}/logs", self._logs),
                web.get("/api/compare", self._compare),
                web.get("/api/environments", self._environments),
                web.get("/api/tests", self._tests),
                web.get("/static/{file:[a-z/]+[.](?:js|css|svg)}", self._file),
                web.get("/{page:|runs|compare|environments|tests}", self._shell),
                web.get(f"/runs/{run}", self._shell),
            ]
        )
        app.on_shutdown.append(self._close)
        return app

    async def _close(self, _: web.Application) -> None:
        await self._access.close()

    @web.middleware
    async def _protect(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        why = refusal(request.host, request.headers, self._hosts)
        try:
            answer = _problem(403, why) if why else await handler(request)
        except web.HTTPException as error:
            answer = _problem(error.status, error.reason)
        except Unauthorized:
            await self._access.forget(bearer(request.headers))
            answer = _problem(401, "The cluster rejects these credentials: log in again.")
        except ApiError as error:
            code = 404 if isinstance(error, NotFound) else 403 if isinstance(error, Forbidden) else 502
            answer = _problem(code, error.message)
        except TooManyPeopleError:
            answer = _problem(503, "Too many people are connected; try again in a minute.")
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    def _reader(self, request: web.Request) -> Reader:
        reader = self._access.reader(bearer(request.headers))
        if reader is None:
            raise web.HTTPUnauthorized(reason="A token is required.")
        return reader

    async def _healthy(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    async def _config(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"mode": self._access.mode, "title": self._title})

    async def _key(self, request: web.Request) -> web.StreamResponse:
        """A one-time code becomes the key of `clotho ui`."""
        try:
            code = msgspec.json.decode(await request.read(), type=_Code).code
        except msgspec.MsgspecError:
            raise web.HTTPBadRequest(reason="Send a JSON object with a code.") from None
        key = self._access.exchange(code) if isinstance(self._access, LocalAccess) else ""
        if not key:
            raise web.HTTPUnauthorized(reason="This address was used already.")
        return web.json_response({"key": key})

    async def _runs(self, request: web.Request) -> web.StreamResponse:
        reader = self._reader(request)
        return await _answer(request, reader, table_page(reader.feed, reader.rows, "TrainingRun", _asked(request)))

    async def _environments(self, request: web.Request) -> web.StreamResponse:
        reader = self._reader(request)
        return await _answer(request, reader, table_page(reader.feed, reader.rows, "Environment", _asked(request)))

    async def _tests(self, request: web.Request) -> web.StreamResponse:
        reader = self._reader(request)
        return await _answer(request, reader, table_page(reader.feed, reader.rows, "InferenceTest", _asked(request)))

    async def _run(self, request: web.Request) -> web.StreamResponse:
        reader = self._reader(request)
        return await _answer(request, reader, run_page(reader.feed, _named(request)))

    async def _compare(self, request: web.Request) -> web.StreamResponse:
        reader = self._reader(request)
        asked = dict.fromkeys(request.query.getall("run", []))
        names = [RunName(*each.split("/")) for each in asked if _RUN.fullmatch(each)]
        if not names:
            raise web.HTTPBadRequest(reason="Name the runs: ?run=NAMESPACE/NAME&run=NAMESPACE/NAME")
        return await _answer(request, reader, comparison_page(reader.feed, names[:MOST_COMPARED]))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        found = await run_logs(self._reader(request).feed.client, _named(request), request.query.get("source", ""))
        return web.Response(body=encoded(found), content_type="application/json")

    async def _shell(self, _: web.Request) -> web.StreamResponse:
        return _static("index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return _static(request.match_info["file"])


class _Code(msgspec.Struct, frozen=True):
    code: str


def _named(request: web.Request) -> RunName:
    return RunName(request.match_info["namespace"], request.match_info["name"])


def _asked(request: web.Request) -> Sequence[str]:
    """Namespaces that a person without the right to list them has named."""
    return [each for each in request.query.get("namespaces", "").split(",") if _NAME.fullmatch(each)][:MOST_NAMED]


def _static(name: str) -> web.StreamResponse:
    path = STATIC / name
    if not path.is_file():
        raise web.HTTPNotFound
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return web.Response(body=path.read_bytes(), content_type=kind, charset="utf-8")


def _problem(code: int, why: str) -> web.StreamResponse:
    return web.json_response({"problem": why}, status=code)


async def _answer(request: web.Request, reader: Reader, opened: Opened) -> web.StreamResponse:
    """The present state; to those who accept events, also each change until they leave."""
    async with opened as page:
        if EVENTS not in request.headers.get("Accept", ""):
            answer = web.Response(body=joined(page.parts()), content_type="application/json")
            answer.enable_compression()
            return answer
        stream = web.StreamResponse(headers={**HEADERS, "Content-Type": EVENTS, "X-Accel-Buffering": "no"})
        await stream.prepare(request)
        with suppress(ConnectionError):  # the browser has left
            await _follow(stream, reader, page)
        return stream


async def _follow(stream: web.StreamResponse, reader: Reader, page: Page) -> None:
    sent: Parts = {}
    pulse = reader.feed.pulse
    is_first = True
    while not page.is_outdated():
        seen, parts = pulse.count, page.parts()
        changed = {key: part for key, part in parts.items() if sent.get(key) != part}
        if changed or is_first or sent.keys() - parts.keys():
            await stream.write(b"data: " + joined(changed, sent.keys() - parts.keys()) + b"\n\n")
        sent, is_first = parts, False
        if await pulse.after(seen, HEARTBEAT_SECONDS):
            await asyncio.sleep(SETTLE_SECONDS)
        else:
            await stream.write(b": still here\n\n")


@asynccontextmanager
async def serving(server: Server, host: str, port: int) -> AsyncIterator[int]:
    """The port that it listens on."""
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
