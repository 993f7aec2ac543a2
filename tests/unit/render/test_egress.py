"""The way out of environments: off by default, to the networks that are named; private ones by the administrator."""

from typing import Any

import pytest

from clotho.plan.model import Apply, Create, Observed
from clotho.plan.run.plan import plan
from clotho.plan.settings import PlanSettings
from clotho.render.settings import Proxy, RenderSettings
from unit.plan.run.test_policies import policy
from unit.plan.run.world import START, World, minimal_spec
from unit.render.cases import CASES, run_of
from unit.render.test_walls import reaches

Body = dict[str, Any]
JUDGE = {"cidr": "203.0.113.0/24", "ports": [443, 8443]}
LINE = f"tenacity==9.1.2 --hash=sha256:{'0' * 64}"


def rendered(environment: Body, settings: RenderSettings | None = None, **spec: Any) -> list[Body]:
    run = run_of(CASES["smallest"] | spec | {"environments": [{"name": "letters"} | environment, *_OTHERS]})
    wanted = plan(run, Observed(), START, PlanSettings(render=settings or RenderSettings()))
    return [action.manifest for action in wanted.actions if isinstance(action, Create | Apply)]


_OTHERS: list[Body] = [{"name": "beside", "entry": "letters"}]


def policies(manifests: list[Body]) -> list[Body]:
    return [each for each in manifests if each["kind"] == "NetworkPolicy"]


def pod(manifests: list[Body], name: str = "env-letters") -> Body:
    (found,) = [each for each in manifests if each["kind"] == "Pod" and name in each["metadata"]["name"]]
    return found


def variables(container: Body) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def refusal(environment: Body, settings: RenderSettings | None = None) -> str:
    world = World(minimal_spec(environments=[{"name": "letters"} | environment]))
    world.settings = PlanSettings(render=settings or RenderSettings())
    world.settle()
    assert world.pods == {}
    return world.now_status.message


def test_without_egress_there_is_one_policy_and_the_hub_is_offline() -> None:
    manifests = rendered({})
    (only,) = policies(manifests)
    assert not any("ipBlock" in peer for rule in only["spec"]["egress"][:2] for peer in rule["to"])
    assert variables(pod(manifests)["spec"]["containers"][0])["HF_HUB_OFFLINE"] == "1"


def test_egress_opens_what_it_names_for_its_own_environment_only() -> None:
    manifests = rendered({"egress": [JUDGE]})
    _, opened = sorted(policies(manifests), key=lambda each: each["metadata"]["name"])
    selected = opened["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= pod(manifests)["metadata"]["labels"].items()
    assert not selected.items() <= pod(manifests, "env-beside")["metadata"]["labels"].items()
    (rule,) = opened["spec"]["egress"]
    assert [(each["port"], each["protocol"]) for each in rule["ports"]] == [(443, "TCP"), (8443, "TCP")]
    assert reaches(rule, "203.0.113.9")
    assert not reaches(rule, "203.0.114.9")
    assert "HF_HUB_OFFLINE" not in variables(pod(manifests)["spec"]["containers"][0])
    assert variables(pod(manifests, "env-beside")["spec"]["containers"][0])["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "192.168.1.1", "127.0.0.1", "100.64.0.1"])
def test_every_public_address_is_no_private_one(address: str) -> None:
    opened = policies(rendered({"egress": [{"cidr": "0.0.0.0/0"}]}))[-1]
    (rule,) = opened["spec"]["egress"]
    assert reaches(rule, "104.18.2.115")
    assert not reaches(rule, address)


@pytest.mark.parametrize(
    "cidr", ["10.1.0.0/16", "169.254.169.254/32", "192.168.0.0/16", "127.0.0.1/32", "fd00::/8", "::ffff:10.0.0.1/128"]
)
def test_private_networks_need_the_administrator(cidr: str) -> None:
    rule = {"cidr": cidr}
    problem = f"environments.letters.egress: {cidr} is not a public network; have the administrator add it"
    assert problem in refusal({"egress": [rule]})
    (opened,) = policies(rendered({"egress": [rule]}, RenderSettings(private_networks=(cidr,))))[-1]["spec"]["egress"]
    assert opened["to"] == [{"ipBlock": {"cidr": cidr}}]


def test_a_network_with_host_bits_is_refused() -> None:
    assert "environments.letters.egress: 203.0.113.5/24 has host bits set" in refusal(
        {"egress": [{"cidr": "203.0.113.5/24"}]}
    )


@pytest.mark.parametrize(
    ("allowed", "is_allowed"), [(["203.0.0.0/16"], True), (["203.0.113.0/25"], False), ([], False), (["::/0"], False)]
)
def test_a_policy_limits_the_networks(allowed: list[str], is_allowed: bool) -> None:
    world = World(minimal_spec(environments=[{"name": "letters", "egress": [JUDGE]}]))
    world.policies = (policy(limits={"egress": allowed}),)
    world.settle()
    assert bool(world.pods) is is_allowed
    words = "environments.letters.egress: 203.0.113.0/24 is not within the networks of TrainingPolicy"
    assert (words in world.now_status.message) is not is_allowed


def test_egress_that_is_taken_back_before_the_start_is_closed() -> None:
    world = World(minimal_spec(environments=[{"name": "letters", "egress": [JUDGE]}]))
    world.carry_out(world.plan(), writes=100)
    world.status = {"observedGeneration": -1, "phase": "Pending"}
    world.change_spec(environments=[{"name": "letters"}])
    world.settle()
    found = [seen.spec["egress"] for key, seen in world.objects.items() if key.name.endswith("-env-letters")]
    assert found == [[]]


def test_a_proxy_reaches_trainers_and_environments_with_egress_only() -> None:
    proxy = Proxy(url="http://proxy.example:3128", no_proxy=("hub.example",), ca_config_map="site-ca")
    manifests = rendered({"egress": [JUDGE]}, RenderSettings(proxy=proxy))
    for name in ("trainer", "env-letters"):
        found = pod(manifests, name)["spec"]
        given = variables(found["containers"][0])
        assert given["HTTPS_PROXY"] == given["HTTP_PROXY"] == "http://proxy.example:3128"
        assert given["NO_PROXY"] == "localhost,127.0.0.1,.svc,.cluster.local,hub.example"
        (mounted,) = [each for each in found["containers"][0]["volumeMounts"] if each["name"] == "ca"]
        assert given["SSL_CERT_FILE"] == given["REQUESTS_CA_BUNDLE"] == f"{mounted['mountPath']}/ca.crt"
        assert [each["configMap"]["name"] for each in found["volumes"] if each["name"] == "ca"] == ["site-ca"]
    for name in ("api-server", "env-beside"):
        assert not {"HTTPS_PROXY", "SSL_CERT_FILE"} & variables(pod(manifests, name)["spec"]["containers"][0]).keys()


def test_the_cache_is_writable_for_the_hub_only() -> None:
    spec = pod(rendered({"cacheClaimName": "hub"}))["spec"]
    mounts = {each["mountPath"]: each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "cache"}
    assert mounts["/cache"]["readOnly"] is True
    assert mounts["/cache/huggingface"] == {
        "name": "cache",
        "mountPath": "/cache/huggingface",
        "subPath": "huggingface",
    }
    given = variables(spec["containers"][0])
    assert (given["HF_HOME"], given["HF_HUB_OFFLINE"]) == ("/cache/huggingface", "1")


def test_requirements_need_egress() -> None:
    assert "environments.letters.requirements: they are installed from a package index, which needs egress" in refusal(
        {"requirements": [LINE]}
    )


@pytest.mark.parametrize("claim", ["", "hub"])
def test_requirements_are_installed_without_secrets_and_read_only_afterwards(claim: str) -> None:
    needs = {"requirements": [LINE], "egress": [JUDGE], "cacheClaimName": claim, "secretName": "keys"}
    spec = pod(rendered(needs))["spec"]
    install, wait = spec["initContainers"]
    (main,) = spec["containers"]
    assert (install["name"], wait["name"]) == ("packages", "wait")
    assert "envFrom" not in install
    assert not any("valueFrom" in each for each in install["env"])
    assert variables(install)["CLOTHO_REQUIREMENTS"] == LINE
    folder = variables(main)["CLOTHO_PACKAGES"]
    assert variables(install)["CLOTHO_PACKAGES"] == folder
    writable = [each["mountPath"] for each in install["volumeMounts"] if not each.get("readOnly")]
    assert "/cache/packages" in writable
    assert folder.startswith("/cache/packages/")
    above = [each for each in main["volumeMounts"] if folder.startswith(each["mountPath"])]
    assert above
    assert all(each["readOnly"] for each in above)


@pytest.mark.parametrize(
    "line",
    [
        "tenacity",
        "tenacity==9.1.2",
        f"tenacity>=9 --hash=sha256:{'0' * 64}",
        f"--index-url=http://x/ tenacity==1 --hash=sha256:{'0' * 64}",
        f"tenacity @ http://x/y.whl --hash=sha256:{'0' * 64}",
        f"{LINE}\n--index-url http://x/",
    ],
)
def test_requirements_without_version_or_hash_are_refused(line: str) -> None:
    with pytest.raises(AssertionError, match="requirements"):
        run_of(CASES["smallest"] | {"environments": [{"name": "letters", "requirements": [line]}]})
