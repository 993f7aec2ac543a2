"""Network policies of inference tests: egress to their models only."""

from ipaddress import ip_address, ip_network
from typing import Any

import msgspec
import pytest

from clotho.api import inference_tests
from clotho.render.containers import literal
from clotho.render.settings import RenderSettings
from clotho.render.testing import address_problems, trial_wall

Body = dict[str, Any]


def inference_test(*urls: str) -> inference_tests.InferenceTest:
    models = [{"name": f"m{index}", "baseUrl": url} for index, url in enumerate(urls)]
    body = {"metadata": {"name": "t", "namespace": "team", "uid": "u"}, "spec": {"entry": "e", "models": models}}
    test = inference_tests.parse(body)
    assert isinstance(test, inference_tests.InferenceTest), test
    return test


def wall_of(*urls: str, settings: RenderSettings | None = None) -> list[Body]:
    return list(trial_wall(inference_test(*urls), settings or RenderSettings())["spec"]["egress"])


def problems_of(*urls: str, settings: RenderSettings | None = None) -> tuple[str, ...]:
    return address_problems(inference_test(*urls), settings or RenderSettings())


def namespaces(rule: Body) -> list[str]:
    return [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for peer in rule["to"]
        if "namespaceSelector" in peer
    ]


def reaches(rule: Body, address: str) -> bool:
    where = ip_address(address)
    blocks = [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]
    return any(
        where in ip_network(block["cidr"]) and not any(where in ip_network(e) for e in block.get("except", ()))
        for block in blocks
    )


@pytest.mark.parametrize(
    ("url", "port", "expected"),
    [
        ("http://server:8001/v1", 8001, ["team"]),
        ("http://server.team:8001/v1", 8001, ["team"]),
        ("http://server.other:8001/v1", 8001, []),
        ("http://server.models:8001/v1", 8001, ["models"]),
        ("http://server.models.svc:8001/v1", 8001, ["models"]),
        ("http://pod.server.models.svc.cluster.local:8001/v1", 8001, ["models"]),
        ("https://api.openai.example.com/v1", 443, []),
        ("http://api.openai.example.com/v1", 80, []),
    ],
)
def test_each_name_opens_its_own_port_and_place(url: str, port: int, expected: list[str]) -> None:
    rule, dns = wall_of(url, settings=RenderSettings(test_namespaces=("models",)))
    assert [each["port"] for each in rule["ports"]] == [port]
    assert namespaces(rule) == expected
    assert {each["port"] for each in dns["ports"]} == {53}


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "127.0.0.1", "fd00::1", "fe80::1"]
)
def test_a_public_name_opens_no_private_address(address: str) -> None:
    rule, _ = wall_of("https://openrouter.example.ai/api/v1")
    assert not reaches(rule, address)
    assert reaches(rule, "104.18.2.115")


def test_a_name_in_the_cluster_opens_no_address_at_all() -> None:
    rule, _ = wall_of("http://server:8001/v1")
    assert not reaches(rule, "104.18.2.115")
    assert not reaches(rule, "10.0.0.1")


def test_an_address_opens_itself() -> None:
    rule, _ = wall_of("http://104.18.2.115:8000/v1")
    assert reaches(rule, "104.18.2.115")
    assert not reaches(rule, "104.18.2.116")


@pytest.mark.parametrize(
    "host",
    [
        *("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
        *("169.254.169.254", "169.254.20.10", "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "198.18.0.1"),
    ],
)
def test_private_addresses_need_the_administrator(host: str) -> None:
    (problem,) = problems_of(f"http://{host}:8000/v1")
    assert problem.startswith(f"models[0].baseUrl: {host} is not a public address")
    opened = RenderSettings(private_networks=(f"{host}/32",))
    assert problems_of(f"http://{host}:8000/v1", settings=opened) == ()


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0x7f.0.0.1", "010.0.0.1", "10.0.0.256"])
def test_unusual_notations_of_ip_addresses_are_refused(host: str) -> None:
    (problem,) = problems_of(f"http://{host}:8000/v1")
    assert problem == f"models[0].baseUrl: {host} is neither a name nor an address of four numbers"


@pytest.mark.parametrize(
    "host",
    [
        *("server.other.svc", "server.other.svc.cluster.local", "server.other.svc.cluster.local."),
        *("kubernetes.default.svc", "SERVER.OTHER.SVC", "other.svc", "team.other.svc", "a.team.other.svc"),
    ],
)
def test_services_of_other_namespaces_need_the_administrator(host: str) -> None:
    (problem,) = problems_of(f"http://{host}:8000/v1")
    assert "is in another namespace; have the administrator add" in problem
    opened = RenderSettings(test_namespaces=("other", "default"))
    assert problems_of(f"http://{host}:8000/v1", settings=opened) == ()


@pytest.mark.parametrize("host", ["104.18.2.115", "server", "server.team.svc", "svc", "openrouter.example.ai", "qwen3"])
def test_names_and_public_addresses_are_allowed(host: str) -> None:
    assert problems_of(f"http://{host}:8000/v1") == ()


def test_the_administrator_can_open_private_networks() -> None:
    rule, _ = wall_of("http://vllm.corp.example:8000/v1", settings=RenderSettings(private_networks=("10.9.0.0/16",)))
    assert reaches(rule, "10.9.1.1")
    assert not reaches(rule, "10.8.1.1")


def test_models_of_one_server_share_a_rule() -> None:
    assert len(wall_of("http://server:8001/v1", "http://server:8001/v1", "http://other:8001/v1")) == 3


@pytest.mark.parametrize("url", ["ftp://x/v1", "http://user:pass@x/v1", "http://x/v1?key=s3cret", "http://x y/v1", "x"])
def test_invalid_urls_and_urls_with_credentials_are_refused(url: str) -> None:
    body = {"metadata": {"name": "t"}, "spec": {"entry": "e", "models": [{"name": "m", "baseUrl": url}]}}
    assert isinstance(inference_tests.parse(body), inference_tests.UnreadableTest)


@pytest.mark.parametrize("text", ["$(OPENAI_API_KEY)", "$$(OPENAI_API_KEY)", "$", "a$b", "$$$(X)"])
def test_no_variable_gets_into_a_command(text: str) -> None:
    assert expanded(literal(text), {"OPENAI_API_KEY": "s3cret", "X": "s3cret"}) == text


def expanded(text: str, variables: dict[str, str]) -> str:
    """As the kubelet does it."""
    out, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            out, at = out + "$", at + 2
        elif text.startswith("$(", at) and ")" in text[at:]:
            end = text.index(")", at)
            out, at = out + variables.get(text[at + 2 : end], text[at : end + 1]), end + 1
        else:
            out, at = out + text[at], at + 1
    return out


def test_the_defaults_are_those_of_the_catalogue() -> None:
    names = [(model.name, model.size) for model in inference_tests.DEFAULT_MODELS]
    assert names == [("qwen/qwen3-8b", "small"), ("z-ai/glm-4.7-flash", "medium"), ("minimax/minimax-m2.7", "large")]
    assert msgspec.structs.asdict(inference_tests.DEFAULT_MODELS[0])["base_url"] == "https://openrouter.ai/api/v1"
