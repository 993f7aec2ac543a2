"""HTTP responses of the inference port."""

from collections.abc import Sequence

import msgspec
from aiohttp import web

from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_trainer.inference.core.engine import Completion


def json_response(body: object, completions: Sequence[Completion]) -> web.Response:
    """The header has the oldest policy version among the samples."""
    oldest = min(completion.version for completion in completions)
    return web.Response(
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers={POLICY_VERSION_HEADER: str(oldest)},
    )


def problem(status: int, sentence: str) -> web.Response:
    """Both shapes that clients read: FastAPI's detail and OpenAI's error."""
    kind = "NotFoundError" if status == 404 else "invalid_request_error"
    return web.json_response(
        {"detail": sentence, "error": {"message": sentence, "type": kind, "param": None, "code": status}},
        status=status,
    )
