"""Whatever is sent to the inference port, it answers, never with 500, and serves the next request."""

import copy
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from integration.trainer.served import TOKEN, Client, served

SAMPLING = {"n": 1, "max_new_tokens": 2, "temperature": 1.0, "top_p": 0.9, "stop": ["zz"]}
REQUESTS: dict[str, dict[str, Any]] = {
    "/generate": {"input_ids": [6, 7], "sampling_params": SAMPLING, "return_logprob": True},
    "/v1/completions": {"prompt": "a>", "n": 1, "max_tokens": 2, "logprobs": 1, "temperature": 1.0, "stop": ["z"]},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "b>"}],
        "max_tokens": 2,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    },
}
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    1e308,
    -0.0,
    "",
    "\ud800",
    [],
    [[]],
    {},
    {"a": {}},
    "x" * 5000,
    [0] * 99,
)
JUNK = (b"", b"{", b"[" * 4000, b"NaN", b"1e999", b'"\\ud800"', b"\xff\xfe", b"[]", b"null", b'{"a":' * 2000)
CASES_FOR_EACH_ROUTE = 40
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with served(model, tmp_path_factory.mktemp("work")) as running:
        yield running


def mutated(example: Any, chance: random.Random) -> Any:
    """One value, anywhere in it, is replaced or removed."""
    content = copy.deepcopy(example)
    holder: Any = content
    while True:
        key = chance.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.3:
            break
        holder = inner
    if chance.random() < 0.2:
        del holder[key]
    else:
        holder[key] = chance.choice(ODD)
    return content


def bodies(example: Any) -> Iterator[bytes]:
    chance = random.Random(1)  # noqa: S311 - the same ones every time
    yield from JUNK
    for _ in range(CASES_FOR_EACH_ROUTE):
        yield json.dumps(mutated(example, chance)).encode()


@pytest.mark.parametrize("path", REQUESTS)
async def test_no_request_is_answered_with_500(client: Client, path: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    for body in bodies(REQUESTS[path]):
        async with client.post(path, data=body, headers=headers) as answer:
            await answer.read()
            assert answer.status < 500, (answer.status, body[:300], await answer.text())
    async with client.post(path, json=REQUESTS[path], headers=headers) as answer:
        assert answer.status == 200, await answer.text()
