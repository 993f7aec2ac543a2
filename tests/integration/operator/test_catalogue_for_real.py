"""The commands of describing and testing pods run as processes, so that manifest, program and status meet."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from clotho_dev.ports import free_port
from rig.cluster_access import Body, ClusterAccess, component, condition, eventually
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

StartOperator = Callable[..., Awaitable[OperatorProcess]]

ROOT = Path(__file__).parents[3]
KEY = "sk-a-key-of-somebody"
GOOD = '''
from clotho_environment import Config, Environment, Group
from pydantic import Field


class MineConfig(Config):
    letters: str = Field("ab", min_length=1, description="Each letter is a task.")


class Mine(Environment[MineConfig, str]):
    """Mine, from a ConfigMap."""

    def items(self):
        return list(self.config.letters)

    async def rollout(self, item, policy):
        completions = await policy.complete(item)
        return Group(completions, [float(completion.text == item) for completion in completions])
'''
HOSTILE = 'print(\'{"name": "pretender"}\')\nimport sys\nsys.exit(0)'


class PodProcess:
    """A pod's main container as a process of this machine: its command, its variables, its files."""

    def __init__(self, pod: Body, folder: Path, secrets: dict[str, str]) -> None:
        self._main = pod["spec"]["containers"][0]
        self._folder, self._secrets = folder, secrets
        self._termination = folder / f"termination-{pod['metadata']['name']}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *more: str) -> None:
        given = [part.replace("$$", "$") for part in self._main["command"][1:]]
        command = [part.replace("/environment/", f"{self._folder}/") for part in given]
        named = {each["name"]: self._secrets["OPENAI_API_KEY"] for each in self._main["env"] if "valueFrom" in each}
        sources = [str(ROOT / "images" / name) for name in ("contract", "environment")]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, *more),
            env={
                **os.environ,
                **named,
                "PYTHONPATH": os.pathsep.join(sources),
                "CLOTHO_TERMINATION_MESSAGE": str(self._termination),
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def end(self) -> tuple[int, str]:
        """Exit code and last words."""
        assert self._process is not None
        async with asyncio.timeout(120):
            code = await self._process.wait()
        return code, self._termination.read_text() if self._termination.exists() else ""

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()


async def fetch(port: int) -> Body:
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/description") as answer:
                    if answer.status == 200:
                        found: Body = await answer.json()
                        return found
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def create(cluster: ClusterAccess, plural: str, kind: str, name: str, **spec: Any) -> None:
    body = {"apiVersion": "clotho.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    await cluster.client.create(cluster.folder(plural), body, Body)


async def create_environment(cluster: ClusterAccess, name: str, text: str) -> None:
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {f"{name}.py": text}}
    await cluster.client.create(cluster.folder("configmaps"), files, Body)
    spec = {"configMapName": name, "entry": f"/environment/{name}.py"}
    await create(cluster, "environments", "Environment", name, **spec)


async def pods(cluster: ClusterAccess, kind: str, count: int) -> list[Body]:
    async def look() -> tuple[bool, list[Body]]:
        found = [pod for pod in await cluster.all("pods") if component(pod) == kind]
        return len(found) == count, sorted(found, key=lambda pod: pod["metadata"]["name"])

    return await eventually(f"{count} pods of {kind}", look)


async def until(cluster: ClusterAccess, plural: str, name: str, check: Callable[[Body], bool]) -> Body:
    async def look() -> tuple[bool, Body]:
        body = await cluster.get(plural, name)
        return check(body), body

    return await eventually(f"{plural}/{name}", look)


@asynccontextmanager
async def model_server() -> AsyncIterator[str]:
    """One model knows the answer, one writes nonsense, one never answers."""

    async def complete(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": "wrong key"}, status=401)
        body = await request.json()
        if body["model"] == "hangs":
            await asyncio.Event().wait()
        text = body["prompt"] if body["model"] == "good" else "?"
        return web.json_response({"choices": [{"text": text, "finish_reason": "stop"}] * body.get("n", 1)})

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_a_hostile_file_is_reported_and_a_good_one_beside_it_is_described_and_tested(
    cluster: ClusterAccess, kubelet: FakeKubelet, start_operator: StartOperator, tmp_path: Path
) -> None:
    await start_operator(CLOTHO_NETWORK_PRIVATE_NETWORKS="127.0.0.0/8")  # the models are served on this machine
    kubelet.makes_ready = False
    (tmp_path / "hostile.py").write_text(HOSTILE)
    (tmp_path / "mine.py").write_text(GOOD)
    await create_environment(cluster, "hostile", HOSTILE)
    (pod,) = await pods(cluster, "environment-description", 1)
    exits = PodProcess(pod, tmp_path, {})
    await exits.start("--port", str(free_port()))
    code, words = await exits.end()
    await kubelet.fail(pod, exit_code=code, message=words)
    stalled = await until(cluster, "environments", "hostile", lambda e: condition(e, "Stalled").get("status") == "True")
    assert "exited with code 0 during its import" in stalled["status"]["message"]
    assert "fields" not in stalled["status"]

    await create_environment(cluster, "mine", GOOD)
    pod = next(p for p in await pods(cluster, "environment-description", 2) if "mine" in p["metadata"]["name"])
    describes = PodProcess(pod, tmp_path, {})
    port = free_port()
    await describes.start("--port", str(port))
    kubelet.description = await fetch(port)
    kubelet.makes_ready = True
    environment = await until(cluster, "environments", "mine", lambda e: condition(e, "Ready").get("status") == "True")
    describes.stop()
    assert (await describes.end())[0] == 0
    assert environment["status"]["className"] == "Mine"
    assert {"letters", "group_size"} <= {field["name"] for field in environment["status"]["fields"]}

    await try_three_models(cluster, kubelet, tmp_path)


async def try_three_models(cluster: ClusterAccess, kubelet: FakeKubelet, folder: Path) -> None:
    async with model_server() as url:
        models = [{"name": name, "baseUrl": url} for name in ("good", "garbage", "hangs")]
        size = {"steps": 2, "groupSize": 4, "timeoutSeconds": 8}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}}
        await cluster.client.create(cluster.folder("secrets"), secret, Body)
        given = {"environmentName": "mine", "secretName": "key", "config": {"letters": "xyz"}}
        await create(cluster, "inferencetests", "InferenceTest", "t", **given, **size, models=models)
        found = await pods(cluster, "inference-test", 3)
        assert KEY not in json.dumps(found)
        running = [PodProcess(pod, folder, {"OPENAI_API_KEY": KEY}) for pod in found]
        await asyncio.gather(*(each.start() for each in running))
        for pod, (code, words) in zip(found, await asyncio.gather(*(each.end() for each in running)), strict=True):
            await kubelet.fail(pod, exit_code=code, message=words)
    done = await until(cluster, "inferencetests", "t", lambda t: t["status"]["phase"] in ("Completed", "Failed"))
    status = done["status"]
    assert status["summary"] == {
        "requested": 3,
        "tested": 2,
        "succeeded": 2,
        "bestModel": "good",
        "averageAccuracy": 0.5,
        "environmentWorks": True,
    }
    assert [each["accuracy"] for each in status["models"]] == [1, 0, 0]
    assert "The deadline of 8 s passed after 0 of 2 groups" in status["models"][2]["error"]
    assert KEY not in json.dumps([done, await cluster.all("pods"), await cluster.all("events")])
