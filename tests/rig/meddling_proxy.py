"""Between the operator and the API server: records writes, and loses, delays or refuses what a test wants."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from clotho.cluster.kubeconfig import from_kubeconfig

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Write(msgspec.Struct, frozen=True):
    """One write of the operator about a run: leases and events do not count."""

    number: int  # from 1
    method: str
    path: str

    @property
    def what(self) -> str:
        return f"{self.method} {self.path.split('/namespaces/', 1)[-1].split('/', 1)[-1]}"


Before = Callable[[Write], Awaitable[web.StreamResponse | None]]
After = Callable[[Write], Awaitable[None]]
Watching = Callable[[str], web.Response | None]


async def _pass_on(_: Write) -> None:
    return None


async def serve_proxy(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], kubeconfig: Path
) -> web.AppRunner:
    """A server on loopback that gets every request, and a kubeconfig that leads to it."""
    app = web.Application(client_max_size=64 * 1024**2)
    app.router.add_route("*", "/{path:.*}", handle)
    server = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    _write_kubeconfig(kubeconfig, server.addresses[0][1])
    return server


def _write_kubeconfig(path: Path, port: int) -> None:
    document = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    path.write_bytes(msgspec.yaml.encode(document))


class MeddlingProxy:
    """`before(write)` may answer in the server's place; `after(write)` runs once the server has committed.

    `watching(path)` may answer a watch in the server's place; `flowing` is cleared to freeze what watches deliver.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._credentials = from_kubeconfig(kubeconfig)
        self.kubeconfig = folder / "proxied.kubeconfig"
        self.writes: list[Write] = []
        self.before: Before = _pass_on
        self.after: After = _pass_on
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.watching: Watching = lambda _: None
        self._open_watches: set[aiohttp.ClientResponse] = set()

    def end_watches(self) -> None:
        """The client has to open each of them again."""
        for upstream in tuple(self._open_watches):
            upstream.close()

    async def __aenter__(self) -> "MeddlingProxy":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._credentials.tls or False, limit=0), auto_decompress=False
        )
        self._server = await serve_proxy(self._handle, self.kubeconfig)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.flowing.set()
        await self._server.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        write = None
        if request.method in WRITES and not request.path.endswith("/events") and "/leases" not in request.path:
            write = Write(len(self.writes) + 1, request.method, request.path)
            self.writes.append(write)
            if (answer := await self.before(write)) is not None:
                return answer
        if _is_watch(request) and (answer := self.watching(request.path)) is not None:
            return answer
        return await self._forward(request, write)

    async def _forward(self, request: web.Request, write: Write | None) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() in ("accept", "content-type")}
        headers |= self._credentials.headers()
        async with self._session.request(
            request.method,
            self._credentials.server + request.raw_path,
            data=await request.read() or None,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as upstream:
            if write is not None:
                await self.after(write)
            response = web.StreamResponse(status=upstream.status)
            for name in ("Content-Type", "Retry-After", "Content-Encoding"):
                if name in upstream.headers:
                    response.headers[name] = upstream.headers[name]
            await response.prepare(request)
            if _is_watch(request):
                await self._relay_watch(upstream, response)
            else:
                await response.write(await upstream.read())
            await response.write_eof()
            return response

    async def _relay_watch(self, upstream: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        self._open_watches.add(upstream)
        try:
            async for chunk in upstream.content.iter_any():
                await self.flowing.wait()
                await response.write(chunk)
        except aiohttp.ClientConnectionError:
            return  # ended by `end_watches`
        finally:
            self._open_watches.discard(upstream)


def _is_watch(request: web.Request) -> bool:
    return "watch=true" in request.query_string


def refuse(code: int, reason: str, **headers: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": "as the test wants"}
    return web.json_response(body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()})
