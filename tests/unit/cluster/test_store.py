"""Watch events update the store, and each change is announced once."""

import json

import pytest

from clotho.api.names import COMPONENT_LABEL, MANAGED_BY_LABEL, RUN_LABEL
from clotho.api.training_run import UnreadableRun
from clotho.cluster.cache import Key
from clotho.cluster.probe import Answers
from clotho.cluster.store import Store, decode
from clotho.plan.model import ObjectKey
from clotho.render.objects import TOKEN_KEYS, contents_digest
from clotho_contract import termination
from clotho_contract.progress import CheckpointInfo, Progress
from clotho_contract.termination import Termination
from rig.objects import UID, Body, pod_body, run_body

RUN = Key("ns", "r")


def store() -> tuple[Store, list[Key]]:
    heard: list[Key] = []
    return Store(changed=heard.append), heard


def test_a_new_state_is_announced_and_its_repetition_is_not() -> None:
    seen, heard = store()
    seen.handle_event("Pod", False, pod_body("trainer", 5))
    seen.handle_event("Pod", False, pod_body("trainer", 5))
    seen.handle_event("Pod", False, pod_body("trainer", 4))
    assert heard == [RUN]
    assert [pod.name for pod in seen.pods_of(RUN, UID)] == ["r-trainer"]


def test_own_writes_are_not_announced() -> None:
    seen, heard = store()
    seen.pods.observe(decode("Pod", pod_body("trainer", 5)))  # type: ignore[arg-type]
    seen.handle_event("Pod", False, pod_body("trainer", 5))
    assert heard == []


def test_a_deletion_is_announced() -> None:
    seen, heard = store()
    seen.handle_event("TrainingRun", False, run_body())
    seen.handle_event("TrainingRun", True, run_body(2))
    assert heard == [RUN, RUN]
    assert seen.run(RUN) is None
    assert seen.removed_runs[RUN].metadata.resource_version == "1"


def test_pod_whose_label_was_removed_and_put_back_is_known_again() -> None:
    seen, heard = store()
    seen.handle_event("Pod", False, pod_body("trainer", 5))
    seen.handle_event("Pod", True, pod_body("trainer", 6))
    seen.handle_event("Pod", False, pod_body("trainer", 7))
    assert [pod.name for pod in seen.pods_of(RUN, UID)] == ["r-trainer"]
    assert heard == [RUN, RUN, RUN]


def test_pod_that_is_read_without_the_label_of_the_watch_is_not_kept() -> None:
    """Its end would not be reported."""
    seen, _ = store()
    unlabelled = pod_body("trainer", 6)
    del unlabelled["metadata"]["labels"][MANAGED_BY_LABEL]
    seen.handle_event("Pod", False, pod_body("trainer", 5))
    seen.take_in("Pod", unlabelled)
    assert seen.pods_of(RUN, UID) == ()
    seen.take_in("Pod", pod_body("trainer", 7))
    seen.take_in("Pod", unlabelled)
    assert [pod.metadata.resource_version for pod in seen.pods_of(RUN, UID)] == ["7"]


def test_workload_that_is_read_without_the_label_of_the_watch_is_not_kept() -> None:
    seen, _ = store()
    metadata = {key: pod_body("trainer", 5)["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    seen.take_in("Workload", {"metadata": metadata | {"labels": {RUN_LABEL: "r"}}})
    assert list(seen.workloads.all()) == []


@pytest.mark.parametrize("labels", [{}, {RUN_LABEL: "other"}])
def test_run_whose_pod_lost_its_label_is_announced(labels: dict[str, str]) -> None:
    seen, heard = store()
    seen.handle_event("Pod", False, pod_body("trainer", 5))
    body = pod_body("trainer", 6)
    body["metadata"]["labels"] = labels
    seen.handle_event("Pod", False, body)
    assert heard == [RUN, *(Key("ns", name) for name in labels.values()), RUN]
    assert seen.pods_of(RUN, UID) == ()


def test_deletion_of_a_pod_that_has_just_lost_its_label_is_announced() -> None:
    """Events that follow each other closely arrive as the last of them."""
    seen, heard = store()
    seen.handle_event("Pod", False, pod_body("trainer", 5))
    body = pod_body("trainer", 7)
    del body["metadata"]["labels"][RUN_LABEL]
    seen.handle_event("Pod", True, body)
    assert heard == [RUN, RUN]


def test_objects_of_an_earlier_run_of_the_same_name_are_ignored() -> None:
    seen, _ = store()
    body = pod_body("trainer")
    body["metadata"]["labels"]["clotho.dev/owner-uid"] = "another"
    seen.handle_event("Pod", False, body)
    assert seen.pods_of(RUN, UID) == ()


def service(version: int = 1) -> Body:
    labels = {"clotho.dev/run": "r", "clotho.dev/owner-uid": UID}
    annotations = {"clotho.dev/fingerprint": "f"}
    metadata = {"name": "s", "namespace": "ns", "uid": "u", "resourceVersion": str(version), "labels": labels}
    return {"kind": "Service", "metadata": metadata | {"annotations": annotations}, "spec": {}}


def test_other_objects_are_seen_with_what_they_were_rendered_from() -> None:
    seen, _ = store()
    body = service()
    body["metadata"]["ownerReferences"] = [{"apiVersion": "v", "kind": "TrainingRun", "name": "r", "uid": UID}]
    seen.handle_event("Service", False, body)
    found = seen.objects_of(RUN, UID)[ObjectKey("Service", "s")]
    assert (found.uid, found.fingerprint, [owner.uid for owner in found.owners], found.is_terminating) == (
        "u",
        "f",
        [UID],
        False,
    )


@pytest.mark.parametrize(
    ("change", "has_tokens"),
    [({}, True), ({"CLOTHO_TRAINER_TOKEN": ""}, False), ({"CLOTHO_TRAINER_TOKEN": None}, False)],
)
def test_of_a_secret_it_is_seen_whether_every_token_is_there(change: Body, has_tokens: bool) -> None:
    seen, _ = store()
    data = {**dict.fromkeys(TOKEN_KEYS, "dA=="), "run.yaml": "YQ==", **change}
    body = {**service(), "kind": "Secret", "data": {key: value for key, value in data.items() if value is not None}}
    body["metadata"]["annotations"] = {"clotho.dev/tokens": "7"}
    assert seen.take_in("Secret", body) is not None
    found = seen.objects_of(RUN, UID)[ObjectKey("Secret", "s")]
    assert (found.has_tokens, found.contents, found.token_revision) == (has_tokens, contents_digest("YQ=="), "7")


def test_of_a_secret_only_the_operators_token_is_kept() -> None:
    tokens = {key: key.encode().hex() for key in TOKEN_KEYS}
    kept = repr(decode("Secret", {**service(), "kind": "Secret", "data": {**tokens, "run.yaml": ""}}))
    assert [key for key in TOKEN_KEYS if tokens[key] in kept] == ["CLOTHO_OPERATOR_TOKEN"]


def test_of_an_older_secret_the_token_of_all_roles_is_kept() -> None:
    body = {**service(), "kind": "Secret", "data": {"CLOTHO_TOKEN": "dA==", "CLOTHO_ADMIN_TOKEN": "YQ=="}}
    kept = repr(decode("Secret", body))
    assert ("dA==" in kept, "YQ==" in kept) == (True, False)


def test_termination_message_of_a_deleted_pod_is_read() -> None:
    """A trainer can save its checkpoint, end and vanish before anybody looks."""
    answers = Answers()
    store = Store(pod_ended=answers.keep_termination)
    final = Progress(state="waiting", step=7, total_steps=9, checkpoint=CheckpointInfo(step=7, path="/x/7"))
    words = termination.encode(Termination(reason="Stopped", message="saved", step=7, progress=final)).decode()
    labels = {RUN_LABEL: "demo", COMPONENT_LABEL: "trainer", "clotho.dev/owner-uid": UID}
    body = {
        "metadata": {"name": "t", "namespace": "n", "uid": "u", "resourceVersion": "9", "labels": labels},
        "status": {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0, "message": words}}}]},
    }
    store.handle_event("Pod", True, body)
    heard = answers.of(Key("n", "demo"), UID).trainer
    assert heard is not None
    assert heard.answer == final
    assert answers.of(Key("n", "demo"), "successor").trainer is None, "a successor has not made these steps"


def test_removal_of_a_run_is_noted_when_its_successor_is_seen_first() -> None:
    """Each of the two has its own events, which may arrive in any order."""
    seen, _ = store()
    first, second = run_body(1), run_body(2)
    second["metadata"]["uid"] = "successor"
    seen.handle_event("TrainingRun", False, first)
    assert seen.removed_runs == {}
    seen.handle_event("TrainingRun", False, second)
    assert [run.metadata.uid for run in seen.removed_runs.values()] == [UID]
    seen.handle_event("TrainingRun", True, first)
    assert seen.runs_in("ns")[0].metadata.uid == "successor"


def owned(kind: str, name: str, spec: Body, status: Body | None = None, version: int = 1) -> Body:
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": kind, "metadata": metadata, "spec": spec, "status": status or {}}


def test_a_child_belongs_to_the_object_that_its_label_names() -> None:
    seen, heard = store()
    body = pod_body("environment-description")
    body["metadata"]["labels"] = {"clotho.dev/described-environment": "e", "clotho.dev/owner-uid": "uid-e"}
    seen.handle_event("Pod", False, body)
    key = Key("ns", "e", "Environment")
    assert heard == [key]
    assert [pod.name for pod in seen.pods_of(key, "uid-e")] == ["r-environment-description"]
    assert seen.pods_of(Key("ns", "e"), "uid-e") == (), "a run of the same name is another object"


def test_runs_waiting_for_an_environment_are_requeued_when_it_changes() -> None:
    seen, heard = store()
    named = [{"name": "x", "environmentName": "e"}]
    resolved = {"resolved": [{"name": "x", "environmentName": "e"}]}
    for kind, name, spec, status in (
        ("TrainingRun", "waits", {**run_body()["spec"], "environments": named}, None),
        ("TrainingRun", "has-it", {**run_body()["spec"], "environments": named}, resolved),
        ("TrainingRun", "needs-none", run_body()["spec"], None),
        ("InferenceTest", "asks", {"environmentName": "e"}, None),
        ("InferenceTest", "is-done", {"environmentName": "e"}, {"phase": "Completed"}),
        ("InferenceTest", "asks-another", {"environmentName": "f"}, None),
    ):
        seen.handle_event(kind, False, owned(kind, name, spec, status))  # type: ignore[arg-type]
    heard.clear()
    seen.handle_event("Environment", False, owned("Environment", "e", {}))
    assert heard == [Key("ns", "e", "Environment"), Key("ns", "waits"), Key("ns", "asks", "InferenceTest")]


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "Pod"},
        {"kind": "Pod", "metadata": {}},
        {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": 7, "resourceVersion": "1"}},
        pod_body("trainer") | {"status": {"phase": "Dancing"}},
    ],
)
def test_undecodable_objects_are_skipped_and_counted(body: Body) -> None:
    skipped: list[str] = []
    seen = Store(on_undecodable=skipped.append)
    seen.handle_event("Pod", False, body)
    assert seen.take_in("Pod", body) is None
    assert skipped == ["Pod", "Pod"]
    assert len(seen.pods) == 0


def test_object_that_is_too_deep_is_an_unreadable_run() -> None:
    seen, heard = store()
    config = json.loads('{"a":' * 50 + "1" + "}" * 50)
    seen.handle_event("TrainingRun", False, run_body(environments=[{"name": "letters", "config": config}]))
    run = seen.run(RUN)
    assert isinstance(run, UnreadableRun)
    assert "nested more than" in run.problem
    assert heard == [RUN]
