"""TrainingPolicies on a real API server: what kubectl shows, and that CEL and Python never disagree."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clotho.api.admission import admission_policy, binding
from clotho.api.policy import combine, violations
from clotho.api.training_policy import parse
from clotho.api.training_run import TrainingRunSpec
from clotho.cluster.outcomes import ApiError, Forbidden
from clotho_dev.cluster.control_plane import ControlPlane
from clotho_dev.cluster.kubectl import Kubectl, KubectlError
from rig.cluster_access import ClusterAccess, run_manifest
from rig.namespaces import fresh_namespace

CRDS = Path(__file__).parents[3] / "crds"
EXAMPLE = Path(__file__).parents[3] / "examples" / "team-policy" / "training-policy.yaml"
Body = dict[str, Any]


def policy_manifest(name: str, spec: Body) -> Body:
    return {"apiVersion": "clotho.dev/v1alpha1", "kind": "TrainingPolicy", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def admission(kubectl: Kubectl) -> Iterator[None]:
    kubectl.run("apply", "--server-side", f"--filename={CRDS}")
    kubectl.run("wait", "--for=condition=Established", "--timeout=30s", f"--filename={CRDS}")
    kubectl.apply([admission_policy(), binding()])
    yield
    kubectl.run("delete", "--filename=-", stdin=yaml.safe_dump_all([binding(), admission_policy()]))


@pytest.fixture
def team(admission: None, kubectl: Kubectl, namespace: str) -> Kubectl:
    return kubectl.in_namespace(namespace)


def create(team: Kubectl, name: str, *flags: str, **spec: Any) -> None:
    team.run("create", "--filename=-", *flags, stdin=yaml.safe_dump(run_manifest(name, **spec)))


def set_policy(team: Kubectl, name: str = "team", **spec: Any) -> None:
    """Policies reach admission a moment after they are written: wait until this one does."""
    sentinel = {"limits": {**spec.get("limits", {}), "steps": spec.get("limits", {}).get("steps", 9_999_999)}}
    team.apply(policy_manifest(name, spec | sentinel))
    until_refused(team, name)


def until_refused(team: Kubectl, policy: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            create(team, "sentinel", "--dry-run=server", training={"steps": 10_000_000, "batchSize": 8})
        except KubectlError as refusal:
            if f"TrainingPolicy {policy}" in str(refusal):
                return
        time.sleep(0.2)
    raise AssertionError(f"{policy} does not reach admission")


def test_the_refusal_names_every_field_and_its_locked_value(team: Kubectl) -> None:
    set_policy(team, locked={"training": {"steps": 2500, "lora": {"rank": 32}}}, limits={"gpus": 1})
    asked = {"training": {"steps": 10, "batchSize": 8, "lora": {"rank": 8}}, "trainer": {"gpus": 2}}
    with pytest.raises(KubectlError) as refusal:
        create(team, "r", **asked)
    for words in (
        'trainingruns.clotho.dev "r" is forbidden',
        "training.steps: 10 is not allowed, it is locked to 2500 by TrainingPolicy team",
        "training.lora.rank: 8 is not allowed, it is locked to 32 by TrainingPolicy team",
        "trainer.gpus: 2 is more than 1, the limit of TrainingPolicy team",
    ):
        assert words in str(refusal.value)


def test_a_locked_field_may_be_left_out_or_repeated(team: Kubectl) -> None:
    set_policy(team, locked={"training": {"seed": 7}, "tracking": {"wandb": {"project": "p", "secretName": "w"}}})
    create(team, "silent")
    create(team, "repeats", training={"steps": 100, "batchSize": 8, "seed": 7})


def test_the_stricter_of_two_policies_applies(team: Kubectl) -> None:
    set_policy(team, "a", limits={"steps": 50})
    set_policy(team, "b", limits={"steps": 500})
    with pytest.raises(KubectlError, match="100 is more than 50, the limit of TrainingPolicy a"):
        create(team, "r")
    create(team, "r", training={"steps": 50, "batchSize": 8})


def test_policies_of_other_namespaces_do_not_count(team: Kubectl, kubectl: Kubectl) -> None:
    set_policy(team, limits={"steps": 1})
    with fresh_namespace(kubectl) as elsewhere:
        create(kubectl.in_namespace(elsewhere), "r")


def test_a_live_run_that_violates_a_later_policy_can_be_changed(team: Kubectl) -> None:
    create(team, "r")
    set_policy(team, locked={"training": {"seed": 7}}, limits={"gpus": 0, "steps": 50, "replicas": 1})
    change(team, suspend=True)
    change(team, restarts={"limit": 9})
    with pytest.raises(KubectlError, match=r"training\.steps: 200 is more than 50"):
        change(team, training={"steps": 200})
    with pytest.raises(KubectlError, match=r"the sum of replicas, autoscaling\.max where set: 2 is more than 1"):
        change(team, environments=[{"name": "letters", "replicas": 2, "config": {"group_size": 4}}])
    team.run("label", "tr/r", "team=rl")


def change(team: Kubectl, **spec: Any) -> None:
    team.run("patch", "tr/r", "--type=merge", f"--patch={yaml.safe_dump({'spec': spec})}")


def test_a_policy_is_checked_itself(team: Kubectl) -> None:
    for spec, words in (
        ({"locked": {"training": {"stepz": 1}}}, 'unknown field "spec.locked.training.stepz"'),
        ({"locked": {"training": {"steps": 0}}}, "should be greater than or equal to 1"),
        ({"locked": {"inference": {"engine": "magic"}}}, "Unsupported value"),
        ({"limits": {"images": ["a(b"]}}, "should match"),
    ):
        with pytest.raises(KubectlError) as refusal:
            team.run("create", "--dry-run=server", "--filename=-", stdin=yaml.safe_dump(policy_manifest("p", spec)))
        assert words in str(refusal.value)
    assert "Most GPUs of a run" in team.run("explain", "tpol.spec.limits.gpus")
    team.run("create", "--dry-run=server", f"--filename={EXAMPLE}")


# Fields that rules of the CRD do not tie to each other, with values that it takes.
POOL: dict[str, list[Any]] = {
    "model.name": ["team/a", "other/b"],
    "model.revision": ["main", "v2"],
    "model.claimName": ["", "models"],
    "training.learningRate": [4e-5, 1e-4, 1],
    "training.lora.rank": [32, 16, 8],
    "training.lora.alpha": [64, 64.0, 32.5],
    "training.loss.type": ["dapo", "grpo"],
    "training.loss.epsilonHigh": [1.5, 3],
    "training.gradientCheckpointing": [True, False],
    "training.seed": [0, 1, 2],
    "inference.temperature": [1, 0.5],
    "inference.replicas": [0, 1, 2],
    "inference.gpus": [0, 1],
    "trainer.gpus": [1, 2, 4],
    "trainer.replicas": [1, 2],
    "trainer.template": [
        {},
        {"spec": {"nodeSelector": {"pool": "gpu"}}},
        {"spec": {"containers": [{"name": "main", "image": "ghcr.io/team/x:1"}]}},
        {"spec": {"initContainers": [{"name": "i", "image": "docker.io/x"}]}},
        {"spec": {"volumes": [{"name": "v", "image": {"reference": "ghcr.io/other/x"}}]}},
        {"spec": {"containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": 1}}}]}},
        {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "1Gi"}}}]}},
    ],
    "storage.size": ["50Gi", "1Gi"],
    "storage.retain": [True, False],
    "tracking.wandb.mode": ["offline", "disabled"],
    "tracking.wandb.project": ["atropos-tinker", "p"],
    "stall.action": ["Report", "Restart"],
    "deadlineSeconds": [60, 70],
}
CONFIG: dict[str, list[Any]] = {
    "use_wandb": [True, False, 1, "true"],
    "max_token_length": [8192, 8192.0, 4096],
    "servers": [[], [1, {"a": 2.0}], [1.0, {"a": 2}], None],
}
LIMITS: dict[str, list[Any]] = {
    "gpus": [0, 1, 2],
    "replicas": [0, 1, 3],
    "steps": [50, 100],
    "images": [[], ["ghcr.io/team/*"], ["ghcr-io/*", "*"]],
    "models": [["team/*"], ["*b", "x*y"], []],
    "egress": [[], ["203.0.113.0/24", "2001:db8::/32"], ["0.0.0.0/0"]],
}


def nested(flat: Body) -> Body:
    tree: Body = {}
    for name, value in flat.items():
        *folders, last = name.split(".")
        here = tree
        for folder in folders:
            here = here.setdefault(folder, {})
        here[last] = value
    return tree


def some(chance: random.Random, pool: Body, share: float) -> Body:
    return {name: value for name, value in pool.items() if chance.random() < share}


def policy_set(seed: int) -> list[Body]:
    """One or two policies that do not contradict each other."""
    chance = random.Random(seed)  # noqa: S311
    locked = {name: chance.choice(values) for name, values in POOL.items()}
    config = {name: chance.choice(values) for name, values in CONFIG.items()}
    limits = {name: chance.choice(values) for name, values in LIMITS.items()}
    return [
        {
            "locked": nested(some(chance, locked, 0.25)) | {"environmentConfig": some(chance, config, 0.3)},
            "limits": some(chance, limits, 0.1),
        }
        for _ in range(1 + seed % 2)
    ]


POLICIES = [
    *([{"limits": {name: value}}] for name, values in LIMITS.items() for value in values),
    *(policy_set(seed) for seed in range(12)),
]
READ = [[parse(policy_manifest(f"p{number}", spec)) for number, spec in enumerate(each)] for each in POLICIES]


class Judges:
    """A namespace for each set of policies."""

    def __init__(self, control_plane: ControlPlane, namespaces: list[str]) -> None:
        self._namespaces = namespaces
        self._loop = asyncio.Runner()
        self._access = self._loop.run(self._open(control_plane))

    async def _open(self, control_plane: ControlPlane) -> ClusterAccess:
        return ClusterAccess(control_plane.kubeconfig, "")

    def close(self) -> None:
        self._loop.run(self._access.__aexit__())
        self._loop.close()

    def refusals(self, spec: Body) -> list[str]:
        """The API server's words under each set of policies; empty where it takes the run."""
        return self._loop.run(self._ask_all(run_manifest("r", **spec)))

    async def _ask_all(self, manifest: Body) -> list[str]:
        return await asyncio.gather(*(self._ask(namespace, manifest) for namespace in self._namespaces))

    async def _ask(self, namespace: str, manifest: Body) -> str:
        folder = f"/apis/clotho.dev/v1alpha1/namespaces/{namespace}/trainingruns"
        try:
            await self._access.client.create(folder, manifest, Body, dryRun="All")
        except Forbidden as error:
            return error.message
        except ApiError as error:
            raise AssertionError(f"not the policy's word: {error}") from error
        return ""


@pytest.fixture(scope="module")
def judges(admission: None, control_plane: ControlPlane, kubectl: Kubectl) -> Iterator[Judges]:
    names = [f"policies-{index}" for index in range(len(POLICIES))]
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in [*names, "last"]])
    manifests = [
        {**policy_manifest(f"p{number}", spec), "metadata": {"name": f"p{number}", "namespace": name}}
        for name, specs in zip(names, POLICIES, strict=True)
        for number, spec in enumerate(specs)
    ]
    kubectl.apply(manifests)
    set_policy(kubectl.in_namespace("last"))  # one watch brings them all, in order
    asked = Judges(control_plane, names)
    yield asked
    asked.close()
    kubectl.run("delete", "namespace", "--wait=false", *names, "last")


@st.composite
def specs(draw: st.DrawFn) -> Body:
    chosen = draw(st.fixed_dictionaries({}, optional={n: st.sampled_from(values) for n, values in POOL.items()}))
    config = draw(st.fixed_dictionaries({}, optional={n: st.sampled_from(values) for n, values in CONFIG.items()}))
    spec = nested({"model.name": "team/a", "training.steps": draw(st.sampled_from([50, 100])), "training.batchSize": 8})
    for section, fields in nested(chosen).items():
        spec[section] = spec.get(section, {}) | fields if isinstance(fields, dict) else fields
    if "tracking" in spec:
        spec["tracking"]["wandb"]["secretName"] = "wandb"
    image = draw(st.sampled_from(["", "ghcr.io/team/e", "ghcr-io/team/e", "docker.io/e"]))
    replicas = draw(st.integers(0, 4))
    networks = draw(st.sampled_from([[], ["203.0.113.7/32"], ["203.0.0.0/16", "::/0"], ["2001:db8:1::/48"]]))
    template = draw(st.sampled_from(POOL["trainer.template"]))
    environment = {"name": "e", "replicas": replicas, "config": {"group_size": 4} | config, "template": template}
    environment |= {"egress": [{"cidr": cidr} for cidr in networks]} if networks else {}
    return spec | {"environments": [environment | ({"image": image} if image else {})]}


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(spec=specs())
def test_admission_refuses_what_violations_names_and_nothing_else(judges: Judges, spec: Body) -> None:
    asked = msgspec.convert(run_manifest("r", **spec)["spec"], TrainingRunSpec)
    for policies, refusal in zip(READ, judges.refusals(spec), strict=True):
        expected = violations(asked, combine(policies))
        assert bool(refusal) is bool(expected)
        if len(policies) == 1:
            for field in (problem.split(": ")[0] for problem in expected):
                assert f"{field}: " in refusal
