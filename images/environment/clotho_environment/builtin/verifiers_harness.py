"""A verifiers harness that chats in this process; their own start programs with uv, which needs a network."""

import sys
from typing import Any, Final

import aiohttp
from verifiers.v1.configs.harness import HarnessConfig  # type: ignore[import-untyped]
from verifiers.v1.dialects.chat import message_to_wire  # type: ignore[import-untyped]
from verifiers.v1.harness import Harness  # type: ignore[import-untyped]
from verifiers.v1.runtimes import ProgramResult  # type: ignore[import-untyped]

__all__ = ["InProcessHarness"]

ID: Final = "clotho-chat"
sys.modules[ID.replace("-", "_")] = sys.modules[__name__]  # verifiers imports a top-level module of this name


class InProcessHarness(Harness[HarnessConfig]):  # type: ignore[misc]
    """The task's prompt, one reply; tasks with tools need another harness."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        request = {"model": ctx.model, "messages": messages}
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{endpoint.rstrip('/')}/chat/completions", json=request) as response,
        ):
            body = await response.text()
            return ProgramResult(exit_code=0 if response.ok else 1, stdout=body, stderr="" if response.ok else body)
