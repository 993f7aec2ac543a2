"""The policy as an OpenAI-compatible endpoint on loopback that records every turn: for agents of other libraries."""

import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from aiohttp import web

from clotho_contract.untrusted import decode
from clotho_environment.sdk.completion import Completion, Message
from clotho_environment.sdk.conversation import Conversation
from clotho_environment.sdk.routing import Affinity
from clotho_environment.sdk.sampling import InferenceError, InferenceUnavailableError, SamplingClient

SESSION_HEADER: Final = "X-Session-ID"  # what tells the conversations of concurrent agents apart
MOST_SESSIONS: Final = 4096  # far more than agents at once
_NOT_SAMPLING: Final = frozenset({"model", "messages", "tools", "n", "stream", "stream_options", "logprobs", "user"})


class Recorder:
    """Agents talk to `base_url`; afterwards `take(session)` gives the conversation that was really sampled."""

    def __init__(self, client: SamplingClient) -> None:
        self._client = client
        self._turns: OrderedDict[str, list[Completion]] = OrderedDict()
        self._affinities: OrderedDict[str, Affinity] = OrderedDict()
        self.base_url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Recorder"]:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            yield self
        finally:
            await runner.cleanup()

    def take(self, session: str) -> Conversation:
        return Conversation(_over, [], self._turns.pop(session, []))

    async def _chat(self, request: web.Request) -> web.Response:
        try:
            body: dict[str, Any] = decode(await request.read(), dict[str, Any])
            if body.get("stream"):
                return _problem(400, "streaming is not supported here")
            sampling = {key: value for key, value in body.items() if key not in _NOT_SAMPLING and value is not None}
            session = request.headers.get(SESSION_HEADER, "")
            (turn,) = await self._client.chat(
                body.get("messages", []), n=1, tools=body.get("tools"), affinity=self._affinity(session), **sampling
            )
        except (msgspec.MsgspecError, InferenceError) as error:
            return _problem(400, str(error))
        except InferenceUnavailableError as error:
            return _problem(503, str(error))
        self._remember(session, turn)
        return web.Response(body=_answer(turn, str(body.get("model"))), content_type="application/json")

    def _affinity(self, session: str) -> Affinity | None:
        """None for agents without a session: one rank would get them all."""
        if not session:
            return None
        affinity = self._affinities.setdefault(session, Affinity())
        if len(self._affinities) > MOST_SESSIONS:
            self._affinities.popitem(last=False)
        return affinity

    def _remember(self, session: str, turn: Completion) -> None:
        """Bounded: conversations of agents that were stopped are never taken."""
        self._turns.setdefault(session, []).append(turn)
        self._turns.move_to_end(session)
        if len(self._turns) > MOST_SESSIONS:
            self._turns.popitem(last=False)


async def _over(_: Sequence[Message]) -> Completion:
    raise InferenceError("this conversation is over: it was recorded from another program")


def _answer(turn: Completion, model: str) -> bytes:
    read, written = len(turn.prompt_tokens), len(turn.tokens)
    return msgspec.json.encode(
        {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [{"index": 0, "message": turn.message, "finish_reason": turn.finish_reason}],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }
    )


def _problem(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "policy_error"}}, status=status)
