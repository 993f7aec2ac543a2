"""The CRD on a real API server: what is refused, in which words, and what may change on a run that exists."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho.api.names import API_VERSION, INFERENCE_TEST_KIND, KIND
from clotho.render import objects
from clotho.render.config import run_config
from clotho_dev.cluster.kubectl import Kubectl, KubectlError
from unit.render.cases import CASES, SETTINGS, render_all, run_of
from unit.render.catalogue_cases import render_test

CRDS = Path(__file__).parents[3] / "crds"
Body = dict[str, Any]
CHECKED_ELSEWHERE = {  # against the CRDs of these projects: operator/test_kueue.py and test_gitops_examples.py
    "kueue.x-k8s.io",
    "argoproj.io",
    "source.toolkit.fluxcd.io",
    "kustomize.toolkit.fluxcd.io",
    "kustomize.config.k8s.io",
}


@pytest.fixture(scope="module")
def crds(kubectl: Kubectl) -> None:
    kubectl.run("apply", "--filename", str(CRDS))  # client-side: the schema fits into its annotation
    kubectl.run("wait", "--for=condition=Established", "--timeout=30s", "--filename", str(CRDS))


@pytest.fixture
def team(crds: None, kubectl: Kubectl, namespace: str) -> Kubectl:
    return kubectl.in_namespace(namespace)


@pytest.fixture
def anywhere(crds: None, kubectl: Kubectl) -> Kubectl:
    """For what leaves no trace."""
    return kubectl.in_namespace("default")


def run_manifest(spec: Body, name: str = "demo") -> str:
    return yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec})


def create(team: Kubectl, spec: Body, name: str = "demo", *flags: str) -> None:
    team.run("create", *flags, "--filename=-", stdin=run_manifest(spec, name))


def smallest(**changes: Any) -> Body:
    return CASES["smallest"] | changes


def training(**changes: Any) -> Body:
    return smallest(training={"steps": 100} | changes)


@pytest.mark.parametrize("case", CASES)
def test_valid_runs_are_accepted(team: Kubectl, case: str) -> None:
    create(team, CASES[case])
    status = team.get("tr/demo")["status"]
    assert status == {"observedGeneration": -1, "phase": "Pending", "attempt": 0, "restarts": 0}


def test_examples_are_accepted(team: Kubectl) -> None:
    files = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))
    documents = [each for path in files for each in yaml.safe_load_all(path.read_text())]
    ours = [each for each in documents if each["apiVersion"] in ("v1", "apps/v1", API_VERSION)]
    team.run("create", "--dry-run=server", "--filename=-", stdin=yaml.safe_dump_all(ours))
    others = {each["apiVersion"].partition("/")[0] for each in documents if each not in ours}
    assert others == CHECKED_ELSEWHERE, "nothing in the examples goes unchecked"


SHARDED = {"gpus": 2, "sharding": "fsdp"}
REFUSED: list[tuple[Body, str]] = [
    (
        training(batchSize=130),
        "training.batchSize: 130 is not a multiple of group_size 4 (environment letters); use 128 or 132",
    ),
    (training(batchSize=2), "training.batchSize: 2 is not a multiple of group_size 4 (environment letters); use 4"),
    (training(microBatchSize=48), "training.microBatchSize: 48 does not divide batchSize 128; use 0"),
    (training(steps=0), "spec.training.steps in body should be greater than or equal to 1"),
    (training(steps="many"), "spec.training.steps in body must be of type integer"),
    (training(learningRate=0), "spec.training.learningRate in body should be greater than 0"),
    (training(loss={"type": "ppo"}), 'Unsupported value: "ppo": supported values: "bnpo", "cispo"'),
    (training(loss={"epsilonHigh": 0}), "training.loss.epsilonHigh must be greater than 0"),
    (
        training(loss={"type": "cispo", "epsilonHigh": 0.28}),
        "training.loss.epsilonHigh of cispo is the largest importance ratio",
    ),
    (smallest(storage={"resumeFrom": "s3://runs/first"}), "storage.resumeFrom needs storage.s3"),
    (smallest(storage={"s3": {"bucket": "runs"}}), "spec.storage.s3.secretName: Required value"),
    (training(backend="tinker"), "trainer.tinkerSecretName is needed by training.backend tinker"),
    (training(stepz=3), 'unknown field "spec.training.stepz"'),
    (smallest(model={"name": ""}), "spec.model.name in body should be at least 1 chars long"),
    (smallest(model={"name": "m", "quantization": "nf4"}, trainer={"gpus": 0}), "nf4 needs trainer.gpus of at least 1"),
    (
        smallest(
            model={"name": "m", "quantization": "fp8"}, training={"steps": 1, "batchSize": 4, "lora": {"rank": 0}}
        ),
        "model.quantization fp8 needs trainer.gpus of at least 1 and training.lora.rank of at least 1",
    ),
    (
        smallest(training={"steps": 1, "backend": "tinker"}, trainer={"replicas": 2, "tinkerSecretName": "t"}),
        "training.backend tinker trains on the Tinker service: trainer.replicas must be 1",
    ),
    (
        smallest(inference={"engine": "vllm", "kvCacheDtype": "fp8"}),
        "inference.kvCacheDtype fp8 needs inference.engine auto or fast",
    ),
    (smallest(inference={"engine": "vllm"}, trainer={"gpus": 2}), "inference.engine vllm serves one rank"),
    (
        smallest(trainer={"gpus": 1, "sharding": "fsdp"}, inference={"replicas": 1}),
        "trainer.sharding fsdp spreads the model over ranks",
    ),
    (smallest(trainer=SHARDED), "trainer.sharding fsdp leaves no rank that can generate"),
    (
        smallest(model={"name": "m", "quantization": "nf4"}, trainer=SHARDED, inference={"replicas": 1}),
        "trainer.sharding fsdp cannot spread quantised weights",
    ),
    (
        smallest(model={"name": "m", "dtype": "float16"}, trainer=SHARDED, inference={"replicas": 1}),
        "trainer.sharding fsdp cannot train in float16",
    ),
    (CASES["inline"] | {"trainer": {"gpus": 8}}, "inline runs train on one rank"),
    (CASES["inline"] | {"inference": {"replicas": 1}}, "inline runs sample inside the trainer"),
    (
        smallest(
            training={"steps": 1, "backend": "tinker"},
            trainer={"tinkerSecretName": "t"},
            inference={"replicas": 1},
        ),
        "training.backend tinker serves the policy by itself",
    ),
    (
        smallest(inference={"replicas": 1, "engine": "vllm", "vllm": {"mode": "server"}}),
        "inference.replicas start a vLLM of their own",
    ),
    (
        smallest(training={"steps": 1, "lora": {"rank": 0}}, inference={"engine": "vllm", "vllm": {"mode": "server"}}),
        "inference.vllm.mode server serves adapters only",
    ),
    (smallest(inference={"gpus": 2}), "inference.gpus: a replica uses one GPU at most"),
    (
        smallest(inference={"gpus": 1, "engine": "vllm", "vllm": {"tensorParallel": 2}}),
        "inference.gpus: a replica uses one GPU at most",
    ),
    (
        smallest(model={"name": "m", "quantization": "nf4"}, inference={"gpus": 0}),
        "inference.gpus must be at least 1 with model.quantization",
    ),
    (smallest(trainer={"replicas": 65}), "spec.trainer.replicas in body should be less than or equal to 64"),
    (smallest(inline=CASES["inline"]["inline"]), "a run has either environments or inline, and not both"),
    ({"model": {"name": "m"}, "training": {"steps": 1}}, "a run has either environments or inline, and not both"),
    (
        CASES["inline"] | {"training": {"steps": 1, "worldModel": {"coefficient": 0.1}}},
        "training.worldModel needs inline.tools",
    ),
    (CASES["inline"] | {"inline": {"dataset": {}}}, "inline.dataset: give either path or hub"),
    (smallest(export={}, storage={"ephemeral": True}), "export needs storage that lasts"),
    (
        smallest(export={"formats": ["safetensors"], "ollama": {"url": "http://ollama:11434", "name": "ours"}}),
        "export.ollama needs the format gguf",
    ),
    (smallest(environments=[]), "spec.environments in body should have at least 1 items"),
    (smallest(environments=[{"name": "a"}, {"name": "a"}]), "Duplicate value"),
    (
        smallest(environments=[{"name": "A_b"}]),
        'spec.environments[0].name: Invalid value: "A_b": must be a name of lower-case letters, digits and -',
    ),
    (
        smallest(environments=[{"name": "a", "config": {"group_size": "8"}}]),
        "spec.environments[0].config.group_size in body must be of type integer",
    ),
    (
        smallest(environments=[{"name": n, "minBatchAllocation": 0.6} for n in "ab"]),
        "minBatchAllocation must not add up to more than 1",
    ),
    (
        smallest(storage={"claimName": "c", "ephemeral": True}),
        "storage.claimName and storage.ephemeral exclude each other",
    ),
    (smallest(storage={"size": "lots"}), 'spec.storage.size: Invalid value: "lots": must be a size such as 10Gi'),
    (
        smallest(export={"ollama": {"url": "ollama:11434", "name": "ours"}}),
        'spec.export.ollama.url: Invalid value: "ollama:11434": must be a URL that starts with http:// or https://',
    ),
    (smallest(tracking={"wandb": {"project": "p"}}), "tracking.wandb.secretName is needed in mode online"),
    ({"environments": [{"name": "a"}], "training": {"steps": 1}}, "spec.model: Required value"),
]


@pytest.mark.parametrize(("spec", "words"), REFUSED)
def test_bad_runs_are_refused_with_the_field_and_what_is_allowed(anywhere: Kubectl, spec: Body, words: str) -> None:
    with pytest.raises(KubectlError) as refusal:
        create(anywhere, spec, "demo", "--dry-run=server")
    assert words in str(refusal.value)


def try_test(anywhere: Kubectl, spec: Body) -> None:
    manifest = {"apiVersion": API_VERSION, "kind": INFERENCE_TEST_KIND, "metadata": {"name": "t"}, "spec": spec}
    anywhere.run("create", "--dry-run=server", "--filename=-", stdin=yaml.safe_dump(manifest))


@pytest.mark.parametrize(
    "spec",
    [{"environmentName": "echo"}, {"entry": "letters"}, {"entry": "e.py", "image": "i", "configMapName": "c"}],
)
def test_tests_of_an_environment_or_an_entry_are_accepted(anywhere: Kubectl, spec: Body) -> None:
    try_test(anywhere, spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "entry is missing"),
        ({"image": "i"}, "entry is missing"),
        ({"configMapName": "c"}, "entry is missing"),
        ({"environmentName": "echo", "entry": "letters"}, "not both"),
        ({"environmentName": "echo", "image": "i"}, "not both"),
    ],
)
def test_tests_without_an_environment_or_entry_are_refused(anywhere: Kubectl, spec: Body, words: str) -> None:
    with pytest.raises(KubectlError, match=words):
        try_test(anywhere, spec)


@pytest.mark.parametrize("name", ["8b", "a.b", "a" * 64])
def test_names_that_cannot_be_host_names_are_refused(anywhere: Kubectl, name: str) -> None:
    with pytest.raises(KubectlError, match=r"metadata.name: Invalid value: .*at most 63 lower-case letters"):
        create(anywhere, smallest(), name, "--dry-run=server")


def patch(team: Kubectl, changes: Body, *flags: str) -> None:
    team.run("patch", "tr/demo", "--type=merge", f"--patch={yaml.safe_dump(changes)}", *flags)


ENVIRONMENT = CASES["everything"]["environments"][0]
MUTABLE: list[Body] = [
    {"environments": [ENVIRONMENT | {"replicas": 5, "autoscaling": {"max": 8}}, {"name": "letters", "replicas": 1}]},
    {"training": {"steps": 5000}},
    {"suspend": True},
    {"suspend": False},
    {"deadlineSeconds": 60},
    {"ttlSecondsAfterFinished": 0},
    {"restarts": {"limit": 9}},
    {"export": {"formats": ["safetensors"]}},
    {"stop": True},
]


def start_trainer(team: Kubectl) -> None:
    """As the operator notes it once the first trainer pod exists."""
    patch(team, {"status": {"phase": "Starting", "attempt": 1}}, "--subresource=status")


def test_mutable_fields_of_a_started_run_can_change(team: Kubectl) -> None:
    create(team, CASES["everything"])
    start_trainer(team)
    for changes in MUTABLE:
        patch(team, {"spec": changes})


def test_inference_replicas_of_an_existing_run_can_change(team: Kubectl) -> None:
    create(team, CASES["smallest"])
    for replicas in (3, 0):
        patch(team, {"spec": {"inference": {"replicas": replicas}}})


def changed_environment(**changes: Any) -> Body:
    return {"environments": [ENVIRONMENT | changes, {"name": "letters", "replicas": 0}]}


IMMUTABLE: list[tuple[Body, str]] = [
    ({"model": {"name": "other"}}, "model is immutable"),
    ({"inference": {"temperature": 0.5}}, "inference.temperature is immutable"),
    ({"inference": {"gpus": 1}}, "inference.gpus is immutable"),
    ({"trainer": {"disruptionBudget": False}}, "trainer is immutable"),
    ({"trainer": {"template": {"spec": {"nodeSelector": {"gpu": "a100"}}}}}, "trainer is immutable"),
    ({"apiServer": {"template": None}}, "apiServer is immutable"),
    ({"storage": {"retain": True}}, "storage is immutable"),
    ({"tracking": {"wandb": {"project": "other"}}}, "tracking is immutable"),
    ({"stall": {"afterSeconds": 5}}, "stall is immutable"),
    ({"restarts": {"backoffSeconds": 5}}, "restarts.backoffSeconds is immutable"),
    ({"training": {"batchSize": 64}}, "training.batchSize is immutable"),
    ({"training": {"loss": {"epsilonHigh": 3}}}, "training.loss is immutable"),
    ({"training": {"steps": 10}}, "training.steps can only be raised"),
    (changed_environment(config={"group_size": 16}), "environments[].config is immutable"),
    (changed_environment(template={}), "environments[].template is immutable"),
    (changed_environment(egress=[{"cidr": "203.0.113.0/24"}]), "environments[].egress is immutable"),
    (
        changed_environment(config={"group_size": 16, "tokenizer": {"padding": "right"}}),
        "environments[].config is immutable",
    ),
    (changed_environment(minBatchAllocation=None), "environments[].minBatchAllocation is immutable"),
    ({"environments": [ENVIRONMENT]}, "environments cannot be added or removed"),
    (
        changed_environment(replicas=3, autoscaling={"max": 2}),
        f"environments.{ENVIRONMENT['name']}.autoscaling.max: 2 is less than replicas 3, the fewest pods",
    ),
]


def test_every_field_can_change_until_the_trainer_starts(team: Kubectl) -> None:
    create(team, CASES["everything"])
    patch(team, {"status": {"phase": "Pending", "message": "The spec is not valid."}}, "--subresource=status")
    for changes, words in IMMUTABLE:
        if words.endswith(("is immutable", "can only be raised", "cannot be added or removed")):
            patch(team, {"spec": changes}, "--dry-run=server")
    inline = {"environments": None, "inline": CASES["inline"]["inline"], "training": {"backend": "trl"}}
    patch(team, {"spec": inline}, "--dry-run=server")


def test_immutable_fields_are_refused_and_the_message_lists_mutable_ones(team: Kubectl) -> None:
    create(team, CASES["everything"])
    start_trainer(team)
    for changes, words in IMMUTABLE:
        with pytest.raises(KubectlError) as refusal:
            patch(team, {"spec": changes}, "--dry-run=server")
        assert words in str(refusal.value)
        if "immutable" in words:
            changeable = "autoscaling, training.steps (upwards), stop, suspend, time limits"
            assert changeable in str(refusal.value)


def test_all_changed_fields_are_named_in_one_message(team: Kubectl) -> None:
    create(team, CASES["everything"])
    start_trainer(team)
    with pytest.raises(KubectlError, match=r"training.batchSize, training.loss are immutable: once the trainer"):
        patch(team, {"spec": {"training": {"batchSize": 64, "loss": {"epsilonHigh": 3}}}})


def test_a_status_in_a_write_of_the_spec_does_not_open_immutable_fields(team: Kubectl) -> None:
    """Rules take a new `writtenAt` for a write of the status, which leaves the spec as it is."""
    create(team, CASES["everything"])
    start_trainer(team)
    forged = {"writtenAt": "2030-01-01T00:00:00Z", "attempt": 0, "phase": "Pending"}
    with pytest.raises(KubectlError, match="model is immutable"):
        patch(team, {"spec": {"model": {"name": "other"}}, "status": forged})


def test_a_spec_in_a_write_of_the_status_changes_nothing(team: Kubectl) -> None:
    create(team, CASES["everything"])
    start_trainer(team)
    forged = {"status": {"writtenAt": "2030-01-01T00:00:00Z"}, "spec": {"model": {"name": "other"}}}
    patch(team, forged, "--subresource=status")
    assert team.get("tr/demo")["spec"]["model"]["name"] == CASES["everything"]["model"]["name"]


def test_a_stop_cannot_be_undone(team: Kubectl) -> None:
    create(team, smallest(stop=True))
    with pytest.raises(KubectlError, match="stop cannot be taken back; use suspend to pause a run"):
        patch(team, {"spec": {"stop": False}})


def test_steps_of_a_finished_run_cannot_be_raised(team: Kubectl) -> None:
    create(team, smallest())
    patch(team, {"status": {"phase": "Completed"}}, "--subresource=status")
    with pytest.raises(
        KubectlError, match=r"spec.training.steps: Invalid value: .*cannot be raised once the run is finished"
    ):
        patch(team, {"spec": {"training": {"steps": 200}}})
    patch(team, {"spec": {"ttlSecondsAfterFinished": 5}})


def test_kubectl_explain_describes_the_fields(anywhere: Kubectl) -> None:
    text = anywhere.run("explain", "tr.spec.training")
    for words in (
        "How the policy is trained.",
        "Optimiser steps; the run is complete after the last.",
        "maxOffPolicyBatches",
    ):
        assert words in text


def test_kubectl_get_shows_the_columns(team: Kubectl) -> None:
    create(team, smallest())
    header, row = team.run("get", "tr").splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "STEP", "REWARD", "RESTARTS", "AGE", "MESSAGE"]
    assert row.split()[:2] == ["demo", "Pending"]


@pytest.mark.parametrize("case", CASES)
def test_rendered_objects_are_accepted_in_a_restricted_namespace(team: Kubectl, case: str) -> None:
    """The namespace enforces `restricted` Pod Security."""
    for manifest in render_all(CASES[case]):
        manifest["metadata"] |= {"namespace": team.namespace}
        if manifest["kind"] == "Secret":
            manifest["stringData"] = manifest.pop("data")
        team.run("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=yaml.safe_dump(manifest))


def test_network_policies_with_every_kind_of_egress_are_accepted(team: Kubectl) -> None:
    egress = [{"cidr": cidr} for cidr in ("0.0.0.0/0", "::/0", "192.0.0.0/8", "203.0.113.7/32", "2001:db8::/32")]
    rendered = render_all(CASES["smallest"] | {"environments": [{"name": "letters", "egress": egress}]})
    walls = [each for each in (*rendered, *render_test(SETTINGS)) if each["kind"] == "NetworkPolicy"]
    assert len(walls) == 3
    for manifest in walls:
        manifest["metadata"] |= {"namespace": team.namespace}
        team.run("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=yaml.safe_dump(manifest))


def test_a_new_config_leaves_the_tokens_of_the_secret_alone(team: Kubectl) -> None:
    """Created with tokens, applied without: the operator relies on what server-side apply does then."""
    run = run_of(CASES["smallest"])
    manifest = objects.secret(run, run_config(run, "cluster.local"))
    manifest["metadata"] |= {"namespace": team.namespace, "ownerReferences": []}  # there is no such owner
    tokens = dict.fromkeys(objects.TOKEN_KEYS, "dG9rZW4=")
    created = manifest | {"data": manifest["data"] | tokens}
    team.run("create", "--field-manager=clotho", "--filename=-", stdin=yaml.safe_dump(created))
    for config in ("Zmlyc3Q=", "c2Vjb25k"):
        changed = yaml.safe_dump(manifest | {"data": {objects.CONFIG_KEY: config}})
        team.run("apply", "--server-side", "--force-conflicts", "--field-manager=clotho", "--filename=-", stdin=changed)
        data = team.get("secret", manifest["metadata"]["name"])["data"]
        assert data == tokens | {objects.CONFIG_KEY: config}
