"""A real Chromium without a screen, driven over its DevTools protocol; what it complains about is collected."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from clotho_dev.cluster import packages
from rig.cluster_access import eventually

PROGRAM = {"chromium": "chromium"}
LIMIT_SECONDS = 60.0
Json = dict[str, Any]


class Tab:
    """One page. `problems`: errors of the console, uncaught exceptions, and violations of the page's policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket, self._session = socket, session
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self.problems: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def send(self, method: str, **params: Any) -> Json:
        self._number += 1
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = answer
        message = {"id": self._number, "sessionId": self._session, "method": method, "params": params}
        await self._socket.send_str(msgspec.json.encode(message).decode())
        async with asyncio.timeout(LIMIT_SECONDS):
            return await answer

    async def _read(self) -> None:
        async for message in self._socket:
            event = msgspec.json.decode(message.data)
            if (number := event.get("id")) in self._waiting:
                self._waiting.pop(number).set_result(event)
            elif event.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(event["params"]["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.problems.append(str(event["params"]["entry"]))
            elif event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "assert"):
                self.problems.append(str(event["params"]["args"]))

    async def evaluate(self, expression: str) -> Any:
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        result = answer.get("result", {})
        assert "exceptionDetails" not in result, f"{expression}: {answer}"
        assert "error" not in answer, f"{expression}: {answer}"
        return result["result"].get("value")

    async def until(self, expression: str, limit_seconds: float = LIMIT_SECONDS) -> Any:
        """Its value, once that is true."""
        deadline = asyncio.get_running_loop().time() + limit_seconds
        while not (value := await self.evaluate(expression)):
            if asyncio.get_running_loop().time() > deadline:
                text = await self.evaluate("document.body.innerText.slice(0, 2000)")
                raise AssertionError(f"not within {limit_seconds:g} s: {expression}\n{text}\n{self.problems}")
            await asyncio.sleep(0.05)
        return value

    async def until_text(self, text: str) -> None:
        await self.until(f"(document.body?.innerText ?? '').includes({msgspec.json.encode(text).decode()})")

    async def open(self, address: str) -> None:
        await self.send("Page.navigate", url=address)
        await self.until("document.readyState === 'complete' && location.protocol !== 'about:'")

    async def go(self, path: str) -> None:
        """Within the page, as a link does."""
        link = f"Object.assign(document.createElement('a'), {{href: {msgspec.json.encode(path).decode()}}})"
        await self.evaluate(f"{{ const link = {link}; document.body.append(link); link.click(); link.remove(); }}")

    async def look(self, *, width: int = 1240, height: int = 860, scheme: str = "light") -> None:
        is_phone = width < 600
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        await self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def screenshot(self, file: Path) -> None:
        await self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        answer = await self.send("Page.captureScreenshot", format="png")
        await asyncio.to_thread(file.write_bytes, base64.b64decode(answer["result"]["data"]))

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


@asynccontextmanager
async def open_browser(folder: Path) -> AsyncIterator[Tab]:
    """Raises ClusterError where Chromium is missing and cannot be installed."""
    await asyncio.to_thread(packages.require, PROGRAM)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    process = await asyncio.create_subprocess_exec(
        "chromium",
        "--headless=new",
        *sandbox,
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:
            port, path = (await _announced(folder / "DevToolsActivePort")).splitlines()
            async with session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0) as socket:
                tab = await _open_tab(socket)
                try:
                    yield tab
                finally:
                    await tab.close()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _announced(file: Path) -> str:
    """Where it listens: Chromium writes it to a file."""

    def read() -> str:
        return file.read_text() if file.exists() else ""

    async def look() -> tuple[bool, str]:
        text = read()
        return len(text.splitlines()) == 2, text

    return await eventually("a browser that listens", look, LIMIT_SECONDS)


async def _open_tab(socket: aiohttp.ClientWebSocketResponse) -> Tab:
    async def call(number: int, method: str, **params: Any) -> Json:
        await socket.send_str(msgspec.json.encode({"id": number, "method": method, "params": params}).decode())
        async for message in socket:
            answer: Json = msgspec.json.decode(message.data)
            if answer.get("id") == number:
                return dict(answer["result"])
        raise AssertionError("Chromium has closed the connection")

    target = await call(1, "Target.createTarget", url="about:blank")
    attached = await call(2, "Target.attachToTarget", targetId=target["targetId"], flatten=True)
    tab = Tab(socket, attached["sessionId"])
    for domain in ("Page", "Runtime", "Log"):
        await tab.send(f"{domain}.enable")
    return tab
