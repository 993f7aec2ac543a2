"""Properties of the rendered objects that golden files show but do not explain."""

from typing import Any

import pytest

from clotho.api.names import API_SERVER, COMPONENT_LABEL, TRAINER
from clotho.render import objects, pods
from clotho.render.config import fingerprint, run_config
from clotho.render.merge import TemplateError
from clotho.render.names import base_name, claim_name, pod_name
from clotho_contract import config as contract
from unit.render.cases import CASES, SETTINGS, render_all, run_of

Body = dict[str, Any]
ALL_PODS = [
    (case, pod["metadata"]["name"], pod) for case in CASES for pod in render_all(CASES[case]) if pod["kind"] == "Pod"
]


def spec(**changes: Any) -> Body:
    return CASES["smallest"] | changes


@pytest.mark.parametrize(("case", "name", "pod"), ALL_PODS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_container_is_restricted(case: str, name: str, pod: Body) -> None:
    """What Pod Security's `restricted` asks for, and a read-only root besides."""
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["spec"]["automountServiceAccountToken"] is False
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        has_gpu = "nvidia.com/gpu" in container["resources"].get("limits", {}) if "resources" in container else False
        assert ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]) is not has_gpu


OURS = ("main", "wait")  # templates bring others
TOKENS = {
    "api-server": {key: key for key in objects.TOKEN_KEYS if key != "CLOTHO_INFERENCE_TOKEN"},
    "trainer": {
        "CLOTHO_TOKEN": "CLOTHO_TRAINER_TOKEN",
        "CLOTHO_ENVIRONMENT_TOKEN": "CLOTHO_ENVIRONMENT_TOKEN",
        "CLOTHO_OPERATOR_TOKEN": "CLOTHO_OPERATOR_TOKEN",
        "CLOTHO_INFERENCE_TOKEN": "CLOTHO_INFERENCE_TOKEN",
    },
    "inference": {
        "CLOTHO_TOKEN": "CLOTHO_INFERENCE_TOKEN",
        "CLOTHO_ENVIRONMENT_TOKEN": "CLOTHO_ENVIRONMENT_TOKEN",
        "CLOTHO_OPERATOR_TOKEN": "CLOTHO_OPERATOR_TOKEN",
    },
    "environment": {"CLOTHO_TOKEN": "CLOTHO_ENVIRONMENT_TOKEN"},
    "exporter": {},
}


@pytest.mark.parametrize(("case", "name", "pod"), ALL_PODS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_pod_has_only_the_tokens_of_its_role(case: str, name: str, pod: Body) -> None:
    component = pod["metadata"]["labels"].get(COMPONENT_LABEL)
    expected = dict(TOKENS.get(component, {}))
    if component == "trainer" and "inline" in CASES[case]:
        del expected["CLOTHO_TOKEN"]  # there is no API server
    if (component == "trainer" and not run_of(CASES[case]).spec.can_have_replicas) or name.endswith("-trainer-1"):
        expected.pop("CLOTHO_INFERENCE_TOKEN", None)  # there are no replicas, or another pod serves them
    ours = [c for c in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]] if c["name"] in OURS]
    for container in ours:
        secrets = [variable for variable in container.get("env", []) if "secretKeyRef" in variable.get("valueFrom", {})]
        keys = {variable["name"]: variable["valueFrom"]["secretKeyRef"]["key"] for variable in secrets}
        assert {name: key for name, key in keys.items() if key.startswith("CLOTHO_")} == expected


def variables(pod: Body) -> set[str]:
    return {
        variable["name"]
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        for variable in container.get("env", [])
    }


def test_each_pod_gets_only_the_secrets_it_needs() -> None:
    by_component = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod
        for case, _, pod in ALL_PODS
        if case == "everything"
    }
    foreign = {"CLOTHO_ADMIN_TOKEN", "WANDB_API_KEY", "HF_TOKEN", "TINKER_API_KEY"}
    assert variables(by_component["environment"]) & foreign == set()
    assert variables(by_component["trainer"]) & foreign == foreign - {"CLOTHO_ADMIN_TOKEN"}
    assert variables(by_component["api-server"]) & foreign == {"CLOTHO_ADMIN_TOKEN"}
    for pod in by_component.values():
        (mounted,) = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
        assert [item["key"] for item in mounted["items"]] == ["run.yaml"], "tokens are not in the mounted folder"


def test_the_config_file_is_what_the_pods_can_read_and_holds_no_secret() -> None:
    run = run_of(CASES["everything"])
    config = run_config(run, "cluster.local")
    assert contract.parse(contract.render(config)) == config
    assert config.environment("gsm8k").group_size == 16
    assert "secret" not in contract.render(config).lower()


def test_the_fingerprint_follows_what_pods_read_and_nothing_else() -> None:
    def mark(**changes: Any) -> str:
        return fingerprint(run_config(run_of(spec(**changes)), "cluster.local"))

    same = mark()
    assert mark(stop=True, deadlineSeconds=5, restarts={"limit": 9}) == same
    assert mark(environments=[{"name": "letters", "replicas": 7}]) == same
    assert mark(training={"steps": 101}) != same


def test_long_names_stay_within_what_dns_allows() -> None:
    run = run_of(CASES["smallest"], name="r" * 53 + "-" + "x" * 9)
    assert len(base_name(run.metadata)) <= 63
    assert "--" not in base_name(run.metadata)
    environment = pods.environment_pod(run, run.spec.environments[0], 0, SETTINGS, restarts=0)
    assert len(environment["metadata"]["name"]) <= 253
    assert all(len(value) <= 63 for value in environment["metadata"]["labels"].values())
    host = run_config(run, "cluster.local").endpoints.api_server.removeprefix("http://").split(":")[0]
    assert all(len(label) <= 63 for label in host.split("."))


def test_a_later_run_of_the_same_name_shares_no_object() -> None:
    first, second = run_of(CASES["smallest"]), run_of(CASES["smallest"])
    later = type(second.metadata)(name="demo", namespace="team", uid="ffff0000-0000-4000-8000-000000000000")
    assert base_name(first.metadata) != base_name(later)
    assert pod_name(first.metadata, TRAINER) != pod_name(later, TRAINER)
    assert claim_name(first.metadata, TRAINER) != claim_name(later, TRAINER)


@pytest.mark.parametrize(
    ("storage", "component", "is_owned"),
    [
        ({}, TRAINER, False),
        ({"retain": False}, TRAINER, True),
        ({}, API_SERVER, True),
    ],
)
def test_only_a_retained_claim_outlives_its_run(storage: Body, component: Any, is_owned: bool) -> None:
    manifest = objects.claim(run_of(spec(storage=storage)), component)
    assert ("ownerReferences" in manifest["metadata"]) is is_owned


def test_an_existing_claim_is_used_and_not_made() -> None:
    rendered = render_all(spec(storage={"claimName": "earlier-run"}))
    claims = [manifest["metadata"]["name"] for manifest in rendered if manifest["kind"] == "PersistentVolumeClaim"]
    assert claims == ["demo-0123abcd-api-server"]
    (trainer,) = [pod for pod in rendered if pod["metadata"]["name"] == "demo-0123abcd-trainer"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "earlier-run"}} in trainer["spec"]["volumes"]


def test_models_are_read_only_for_the_trainer_and_writable_for_an_init_container() -> None:
    (trainer,) = [pod for case, _, pod in ALL_PODS if case == "on-the-cpu" and pod["spec"].get("hostname") == "trainer"]
    (init,) = trainer["spec"]["initContainers"]
    assert {"name": "models", "mountPath": "/models"} in init["volumeMounts"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in trainer["spec"]["containers"][0][
        "volumeMounts"
    ]
    assert init["image"] == "trainer:test"


def test_a_template_changes_where_and_how_a_pod_runs() -> None:
    template = {
        "metadata": {"labels": {"team": "x"}},
        "spec": {"nodeSelector": {"pool": "gpu"}, "containers": [{"name": "main", "image": "mine:1"}]},
    }
    pod = pods.trainer_pod(run_of(spec(trainer={"template": template})), SETTINGS, restarts=0, attempt=1)
    assert pod["metadata"]["name"] == "demo-0123abcd-trainer"
    assert pod["metadata"]["labels"]["clotho.dev/run"] == "demo"
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["ownerReferences"][0]["name"] == "demo"
    assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert pod["spec"]["containers"][0]["image"] == "mine:1"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            {"spec": {"containers": [{"name": "main", "securityContext": 5}]}},
            "main.securityContext: expected an object",
        ),
        ({"status": {}}, "spec.trainer.template: unknown field status; a template has metadata and spec"),
        ({"spec": 1}, "spec.trainer.template.spec: expected an object, got a number"),
        (
            {"spec": {"$patch": "replace", "containers": [{"image": "x"}]}},
            r"spec.trainer.template.spec.containers\[0\]: name is missing",
        ),
        (
            {"metadata": {"$patch": "replace", "labels": "x"}},
            "spec.trainer.template.metadata.labels: expected an object, got a string",
        ),
    ],
)
def test_a_template_of_another_shape_is_refused(template: Body, words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        pods.trainer_pod(run_of(spec(trainer={"template": template})), SETTINGS, restarts=0, attempt=1)


@pytest.mark.parametrize(
    "template",
    [
        {"spec": None},
        {"metadata": None},
        {"spec": {"containers": None}},
        {"spec": {"$patch": "replace", "containers": None}},
        {"metadata": {"$patch": "replace", "labels": None}},
    ],
)
def test_a_template_that_removes_everything_still_renders(template: Body) -> None:
    """The API server says what is missing; the operator must not stumble."""
    pod = pods.trainer_pod(run_of(spec(trainer={"template": template})), SETTINGS, restarts=0, attempt=1)
    assert pod["metadata"]["name"] == "demo-0123abcd-trainer"


def test_the_queue_fits_the_volume() -> None:
    small = run_config(run_of(spec(storage={"apiServerSize": "10Gi"})), "cluster.local")
    assert small.api_server.max_queue_bytes == 4 * 1024**3


def test_tinker_runs_ask_for_no_gpu() -> None:
    training = {**CASES["smallest"]["training"], "backend": "tinker"}
    run = run_of({**CASES["smallest"], "training": training, "trainer": {"tinkerSecretName": "tinker"}})
    main = pods.trainer_pod(run, SETTINGS, 0, 1)["spec"]["containers"][0]
    assert run.spec.trainer.gpus == 1, "the default"
    assert not [name for amounts in main["resources"].values() for name in amounts if "gpu" in name]


def test_gpu_nodes_as_they_are() -> None:
    """MIG slices, tainted nodes, another runtime, more shared memory and a pull secret of the run's own."""
    node = {
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "runtimeClassName": "nvidia",
        "imagePullSecrets": [{"name": "own"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}],
    }
    trainer = {"gpus": 2, "gpuResource": "nvidia.com/mig-3g.40gb", "template": {"spec": node}}
    found = pods.trainer_pod(run_of(spec(trainer=trainer)), SETTINGS, 0, 1)["spec"]
    assert found["containers"][0]["resources"]["limits"]["nvidia.com/mig-3g.40gb"] == 2
    assert found["runtimeClassName"] == "nvidia"
    assert found["nodeSelector"] == {"gpu": "a100"}
    assert found["tolerations"] == node["tolerations"]
    assert [each["name"] for each in found["imagePullSecrets"]] == ["registry", "own"]
    (shm,) = [volume for volume in found["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"]["sizeLimit"] == "64Gi"
