"""Whatever is sent to whatever its OpenAPI document names, the server answers with something else than 500."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clotho_api_server.http.openapi import OPERATIONS, document

from .conftest import ENVIRONMENT, TRAINER, Servers

GROUP = {
    "tokens": [[1, 2], [3, 4]],
    "masks": [[-100, 2], [3, 4]],
    "scores": [1.0, 0.0],
    "advantages": [[0.5, 0.5], [0.1, 0.1]],
    "inference_logprobs": [[1.0, -0.5], [-0.1, -0.2]],
    "messages": [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]],
    "generation_params": {"policy_version": 0},
    "overrides": [{}, {"set_advantage_to_zero": True}],
    "group_overrides": {},
    "images": None,
    "env_id": 0,
}
LONG_ROWS = [list(range(300)), [-100] * 300]
LONG_GROUP = {
    **GROUP,
    "tokens": LONG_ROWS,
    "masks": LONG_ROWS,
    "advantages": [[0.5] * 300] * 2,
    "inference_logprobs": [[-1e-7, *range(299)]] * 2,
}
BODIES: dict[str, Any] = {
    "/register": TRAINER,
    "/register-env": ENVIRONMENT,
    "/disconnect-env": {"env_id": 0},
    "/status-env": {"env_id": 0},
    "/scored_data": GROUP,
    "/scored_data_list": [GROUP, LONG_GROUP],
    "/evaluations": {"environment": "env", "figures": {"accuracy": 0.5}, "step": 1},
    "/lease": {"wait_seconds": 0},
    "/lease/{id}/ack": {"step": 1},
    "/checkpointed": {"step": 1},
}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0, -1]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=20),
    st.lists(st.integers() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
JUNK = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"", b"[" * 5000, b'{"a":' * 3000, b"NaN", b"[]", b"{}", b'"\\ud800"', b"1e999"]),
)


@st.composite
def mutated(draw: st.DrawFn, example: Any) -> bytes:
    """The example with a few of its values replaced, removed or repeated, anywhere in it."""
    content = copy.deepcopy(example)
    for _ in range(draw(st.integers(0, 3))):
        holder, key = None, None
        place = content
        while isinstance(place, dict | list) and place and (holder is None or draw(st.booleans())):
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            holder, key = place, draw(st.sampled_from(list(keys)))
            place = holder[key]
        if holder is None:
            return draw(JUNK)
        match draw(st.sampled_from(["replace", "remove", "repeat"])):
            case "replace":
                holder[key] = draw(ODD)
            case "remove":
                del holder[key]
            case "repeat":
                holder[key] = [place, place]
    return json.dumps(content).encode()


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes, dict[str, str]]:
    operation = draw(st.sampled_from(OPERATIONS))
    path = operation.path.replace("{id}", draw(st.sampled_from(["x", "%00", "..%2f", "a" * 3000, "%ff", "HELD"])))
    body = b""
    if operation.path in BODIES:
        body = draw(st.one_of(mutated(BODIES[operation.path]), mutated(BODIES[operation.path]), JUNK))
    headers = {"Content-Type": draw(st.sampled_from(["application/json", "text/plain"]))}
    if draw(st.booleans()):
        headers["X-Clotho-Protocol"] = draw(st.sampled_from(["1", "zwei"]))
    if draw(st.booleans()):
        headers["Idempotency-Key"] = draw(st.sampled_from(["a", "b", "", "c" * 300, "\xfc", "'; --", " "]))
    if draw(st.integers(0, 4)) == 0:
        headers["Content-Encoding"] = draw(st.sampled_from(["gzip", "GZIP, br"]))
        body = draw(st.sampled_from([gzip.compress(body), body, gzip.compress(body)[:-3]]))
    return operation.method, path, body, headers


def test_every_operation_with_a_body_is_fuzzed() -> None:
    described = {
        path for path, methods in document()["paths"].items() for how in methods.values() if "requestBody" in how
    }
    assert described == set(BODIES)


@pytest.mark.timeout(600)
def test_no_request_makes_the_server_fail(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("fuzz")

    async def attack(batch: list[tuple[str, str, bytes, dict[str, str]]]) -> None:
        async with Servers(folder / "data").serving(limits={"max_queue_bytes": 100_000}) as api:
            await api.post("/register", {**TRAINER, "max_token_len": 0})
            await api.post("/scored_data_list", [{**GROUP, "env_id": None}] * 2)
            held = (await api.post("/lease", {}))["lease_id"]
            for method, path, body, headers in batch:
                url = api.url + path.replace("HELD", held)
                async with api.session.request(method, url, data=body, headers=headers) as response:
                    is_full = response.status == 503 and "the queue is full" in await response.text()
                    assert response.status < 500 or is_full, (method, path, body, headers, await response.text())
            status = await api.get("/status")
            assert status["queue_size"] >= 0
            assert api.service.problem is None
            await api.session.get(api.url + "/reset_data")

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(requests(), min_size=15, max_size=40))
    def fuzz(batch: list[tuple[str, str, bytes, dict[str, str]]]) -> None:
        asyncio.run(attack(batch))

    fuzz()
