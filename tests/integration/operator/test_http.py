"""The API client and the probe's GET against real sockets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import Credentials
from clotho.cluster.outcomes import AlreadyExists, TooManyRequests, Transient, Unauthorized
from clotho.cluster.pod_http import BODY_LIMIT, ProbeFailed, http_get

Body = dict[str, Any]


class Server:
    """Answers with whatever the test has put into `answers`, in turn, and remembers the requests."""

    def __init__(self) -> None:
        self.answers: list[web.Response] = []
        self.requests: list[web.BaseRequest] = []
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        self.requests.append(request)
        return self.answers.pop(0)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    runner = web.ServerRunner(web.Server(made.handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


def client(server: Server, token: list[str] | None = None, **options: Any) -> ApiClient:
    tokens = token or ["t"]
    credentials = Credentials(f"http://127.0.0.1:{server.port}", None, lambda: tokens[0])
    return ApiClient(credentials, **options)


def refusal(code: int, reason: str, **headers: str) -> web.Response:
    return web.json_response({"kind": "Status", "reason": reason, "message": "no"}, status=code, headers=headers)


async def test_answer_is_typed_and_counted(server: Server) -> None:
    counted: list[tuple[str, str]] = []
    server.answers = [web.json_response({"a": 1})]
    async with client(server, on_answer=lambda verb, code: counted.append((verb, code))) as api:
        assert await api.create("/x", {"b": 2}, Body, fieldManager="m") == {"a": 1}
    assert counted == [("create", "200")]
    assert server.requests[0].headers["Authorization"] == "Bearer t"
    assert server.requests[0].query_string == "fieldManager=m"


async def test_refusals_are_typed(server: Server) -> None:
    server.answers = [refusal(409, "AlreadyExists"), refusal(429, "TooManyRequests", **{"Retry-After": "5"})]
    async with client(server) as api:
        with pytest.raises(AlreadyExists):
            await api.create("/x", {}, Body)
        with pytest.raises(TooManyRequests) as caught:
            await api.get("/x", Body)
    assert caught.value.retry_after == 5.0


async def test_existence_is_asked_without_the_contents(server: Server) -> None:
    server.answers = [web.json_response({}), refusal(404, "NotFound"), refusal(403, "Forbidden")]
    async with client(server) as api:
        assert [await api.exists("/x") for _ in range(3)] == [True, False, True]
    assert all("as=PartialObjectMetadata;" in request.headers["Accept"] for request in server.requests)


async def test_a_rotated_token_is_read_again(server: Server) -> None:
    tokens = ["old"]
    server.answers = [web.json_response({}), refusal(401, "Unauthorized"), web.json_response({})]
    async with client(server, tokens) as api:
        await api.get("/x", Body)
        tokens[0] = "new"
        await api.get("/x", Body)
    assert [r.headers["Authorization"] for r in server.requests] == ["Bearer old", "Bearer old", "Bearer new"]


async def test_a_token_that_stays_wrong_is_logged_once(server: Server) -> None:
    server.answers = [refusal(401, "Unauthorized"), refusal(401, "Unauthorized")]
    async with client(server) as api:
        with pytest.raises(Unauthorized):
            await api.get("/x", Body)


async def test_no_answer_is_transient() -> None:
    async with ApiClient(Credentials("http://127.0.0.1:1", None, lambda: None)) as api:
        with pytest.raises(Transient) as caught:
            await api.get("/x", Body)
    assert caught.value.code == 0


async def test_probe_reads_the_body_of_a_200(server: Server) -> None:
    server.answers = [web.json_response({"step": 3})]
    assert await http_get("127.0.0.1", server.port, "/progress", "secret", 5) == b'{"step": 3}'
    assert server.requests[0].headers["Authorization"] == "Bearer secret"


async def test_probe_errors_name_the_cause(server: Server) -> None:
    server.answers = [web.Response(status=503), web.Response(body=b"x" * (BODY_LIMIT + 1))]
    with pytest.raises(ProbeFailed, match="answered 503"):
        await http_get("127.0.0.1", server.port, "/", None, 5)
    with pytest.raises(ProbeFailed, match="answered more than 256 KiB"):
        await http_get("127.0.0.1", server.port, "/", None, 5)
    with pytest.raises(ProbeFailed, match="port 1: "):
        await http_get("127.0.0.1", 1, "/", None, 5)


async def test_probe_gives_up_on_silence() -> None:
    async def send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(send_nothing, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(ProbeFailed, match="no answer"):
        await http_get("127.0.0.1", port, "/", None, 0.1)
    listener.close()


async def test_probe_of_a_port_without_http_fails_with_the_cause() -> None:
    async def send_garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    listener = await asyncio.start_server(send_garbage, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(ProbeFailed):
        await http_get("127.0.0.1", port, "/", None, 5)
    listener.close()
