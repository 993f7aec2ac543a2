"""Which requests are refused before anything answers them."""

import pytest

from clotho.web.protection import HEADERS, bearer, local_hosts, refusal

HOST = "127.0.0.1:8766"


@pytest.mark.parametrize(
    ("host", "headers", "is_refused"),
    [
        (HOST, {}, False),
        ("localhost:8766", {"Origin": "http://localhost:8766"}, False),
        (HOST, {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, False),
        ("127.0.0.1:80", {}, True),
        ("attacker.example:8766", {}, True),  # DNS rebinding
        (HOST, {"Origin": "http://attacker.example"}, True),
        (HOST, {"Origin": "null"}, True),
        (HOST, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, True),
        (HOST, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, True),
        (HOST, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, False),
    ],
)
def test_requests_of_other_sites_are_refused(host: str, headers: dict[str, str], is_refused: bool) -> None:
    assert bool(refusal(host, headers, local_hosts(8766))) is is_refused


def test_in_a_cluster_every_name_is_answered_but_other_sites_are_not() -> None:
    assert not refusal("clotho.example.org", {"Origin": "https://clotho.example.org"}, ())
    assert refusal("clotho.example.org", {"Origin": "https://attacker.example"}, ())


@pytest.mark.parametrize(
    ("header", "token"), [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", ""), ("", "")]
)
def test_bearer_token(header: str, token: str) -> None:
    assert bearer({"Authorization": header}) == token


def test_policy_allows_only_what_the_server_itself_sends() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
