"""The page's data over HTTP: with a kubeconfig, and with the tokens of several people."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest_asyncio

from clotho_dev.cluster.control_plane import ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from rig import page_objects as objects
from rig.cluster_access import ClusterAccess, eventually
from rig.namespaces import fresh_namespace
from rig.page_process import clotho_ui, page_in_cluster

EVENTS = {"Accept": "text/event-stream"}
LIMIT_SECONDS = 60.0
Json = dict[str, Any]


class Visitor:
    def __init__(self, session: aiohttp.ClientSession, token: str) -> None:
        self._session, self._token = session, token

    async def ask(self, path: str, **headers: str) -> tuple[int, Any, Json]:
        known = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        async with self._session.get(path, headers={**known, **headers}) as answer:
            body = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, msgspec.json.decode(body) if is_json else body, dict(answer.headers)

    async def parts(self, path: str) -> Json:
        status, body, _ = await self.ask(path)
        assert status == 200, body
        return dict(body["parts"])

    @asynccontextmanager
    async def following(self, path: str) -> AsyncIterator[AsyncIterator[Json]]:
        headers = {"Authorization": f"Bearer {self._token}", **EVENTS}
        async with self._session.get(path, headers=headers) as answer:
            assert answer.content_type == "text/event-stream"
            yield _messages(answer)


async def _messages(answer: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield msgspec.json.decode(line[6:])


async def until_sent(messages: AsyncIterator[Json], key: str) -> Json:
    """The first message that has a part."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async for message in messages:
            if key in message["parts"]:
                return message
    raise AssertionError("the stream has ended")


@pytest_asyncio.fixture
async def local(control_plane: ControlPlane, cluster: ClusterAccess) -> AsyncIterator[Visitor]:
    async with clotho_ui(control_plane.kubeconfig, "--namespace", cluster.namespace) as printed:
        address, _, key = printed.partition("#key=")
        async with aiohttp.ClientSession(base_url=address) as session:
            yield Visitor(session, key)


async def test_local_page_answers_only_its_own_browser(cluster: ClusterAccess, local: Visitor) -> None:
    run = await objects.write_run(cluster, "letters", objects.running(40, 80), objects.history(40))
    key = f"{cluster.namespace}/letters"
    status, _, headers = await local.ask("/")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    assert (await local.ask("/static/app.js"))[2]["Content-Type"].startswith("text/javascript")
    for refused in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"}):
        assert (await local.ask("/api/runs", **refused))[0] == 403
    for wrong in ("", "Bearer wrong"):
        assert (await local.ask("/api/runs", Authorization=wrong))[0] == 401
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/api/runs/..%2f..%2fapi/v1", "/secret"):
        assert (await local.ask(path))[0] == 404

    assert (await local.parts("/api/runs"))[key]["step"] == 40
    async with local.following("/api/runs") as rows, local.following(f"/api/runs/{key}") as details:
        assert (await until_sent(rows, key))["parts"][key]["phase"] == "Running"
        first = await until_sent(details, "series")
        assert len(first["parts"]["series"]["steps"]) == 40
        await cluster.patch("trainingruns", "letters", {"status": objects.running(60, 80)}, "/status")
        changed = await until_sent(details, "run")
        assert changed["parts"]["run"]["step"] == 60
        assert "series" not in changed["parts"], "only what has changed is sent"
        assert (await until_sent(rows, key))["parts"][key]["step"] == 60
        await cluster.delete("trainingruns", "letters", preconditions={"uid": run["metadata"]["uid"]})
        assert "There is no run" in (await anext_missing(local, key))


async def anext_missing(local: Visitor, key: str) -> str:
    """A page of a run that was deleted ends; the next one explains it."""

    async def look() -> tuple[bool, str]:
        found = (await local.parts(f"/api/runs/{key}")).get("missing", "")
        return bool(found), found

    return await eventually("missing", look)


async def test_in_a_cluster_everybody_sees_what_their_token_may_read(
    control_plane: ControlPlane, kubectl: Kubectl, cluster: ClusterAccess, tmp_path: Path
) -> None:
    await objects.write_run(cluster, "letters", objects.running(40, 80), objects.history(40))
    here = kubectl.in_namespace(cluster.namespace)
    tokens = {}
    for name in ("viewer", "unbound"):
        here.run("create", "serviceaccount", name)
        tokens[name] = here.run("create", "token", name).strip()
    here.run("create", "role", "viewer", "--verb=get,list,watch", "--resource=trainingruns.clotho.dev")
    here.run("create", "rolebinding", "viewer", "--role=viewer", f"--serviceaccount={cluster.namespace}:viewer")
    run = f"/api/runs/{cluster.namespace}/letters"
    with fresh_namespace(kubectl) as elsewhere:
        async with (
            page_in_cluster(control_plane.kubeconfig, tmp_path) as address,
            aiohttp.ClientSession(base_url=address) as session,
        ):
            viewer, unbound = (Visitor(session, token) for token in tokens.values())
            asked = f"/api/runs?namespaces={cluster.namespace},{elsewhere}"
            assert f"{cluster.namespace}/letters" in await viewer.parts(asked)
            seen = await viewer.parts(run)
            assert seen["run"]["step"] == 40
            assert "Not permitted" in seen["unread"][0], "this role has no ConfigMaps"
            assert (await unbound.parts(asked)).keys() == {"scope"}
            assert "Not permitted" in (await unbound.parts(asked))["scope"]["problem"]
            assert (await unbound.parts(run)).keys() == {"missing"}
            assert (await unbound.ask(f"{run}/logs"))[0] == 403
            assert (await Visitor(session, "made-up").ask("/api/runs"))[0] == 401
            assert (await Visitor(session, "").ask("/api/runs"))[0] == 401
            assert (await Visitor(session, "").ask("/api/config"))[1]["mode"] == "token"
