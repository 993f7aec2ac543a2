"""The writer: what it sends, which refusals it keeps, and how it handles errors and missing answers."""

from typing import Any

import pytest

from clotho.api.names import MANAGED_BY, MANAGED_BY_LABEL
from clotho.cluster.apply import NotLeader, Writer
from clotho.cluster.cache import Key
from clotho.cluster.outcomes import ApiError, Conflict, Forbidden, Invalid, NotFound, Transient
from clotho.cluster.store import Store
from clotho.plan.model import Action, Apply, Create, Delete, ObjectKey, Validate
from clotho.render import objects
from rig.fake_api import FakeApi
from rig.objects import UID, a_run, pod_body, run_body

RUN = Key("ns", "r")
POD, POLICY = ObjectKey("Pod", "r-trainer"), ObjectKey("NetworkPolicy", "r")


class Rig:
    def __init__(self) -> None:
        self.api, self.store, self.leads = FakeApi(), Store(), True
        self.writer = Writer(self.api, self.store, lambda: self.leads)  # type: ignore[arg-type]

    async def do(self, *actions: Action) -> None:
        await self.writer.carry_out(a_run(), actions)


def create_pod() -> Create:
    return Create(key=POD, manifest=pod_body("trainer", 7))


def apply_policy() -> Apply:
    labels = {MANAGED_BY_LABEL: MANAGED_BY, "clotho.dev/run": "r", "clotho.dev/owner-uid": UID}
    metadata = {"name": "r", "namespace": "ns", "uid": "p", "labels": labels}
    return Apply(key=POLICY, manifest={"kind": "NetworkPolicy", "metadata": metadata})


CREATE_POD, POD_PATH = "create /api/v1/namespaces/ns/pods", "/api/v1/namespaces/ns/pods/r-trainer"
POLICY_PATH = "/apis/networking.k8s.io/v1/namespaces/ns/networkpolicies/r"


async def test_written_objects_are_in_the_cache_at_once() -> None:
    rig = Rig()
    await rig.do(apply_policy(), create_pod())
    assert [pod.name for pod in rig.store.pods_of(RUN, UID)] == ["r-trainer"]
    assert POLICY in rig.store.objects_of(RUN, UID)


async def test_no_pod_without_its_network_policy() -> None:
    rig = Rig()
    rig.api.refusals[f"patch {POLICY_PATH}"] = Transient("patch", "down", 500)
    with pytest.raises(Transient):
        await rig.do(apply_policy(), create_pod())
    assert rig.api.requests == [f"patch {POLICY_PATH}"]


async def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    rig = Rig()
    rig.leads = False
    with pytest.raises(NotLeader):
        await rig.do(create_pod())
    with pytest.raises(NotLeader):
        await rig.writer.write_status(a_run(), a_run().status)
    assert rig.api.requests == []


async def test_our_own_earlier_creation_counts_as_success() -> None:
    rig = Rig()
    rig.api.objects[POD_PATH] = pod_body("trainer", 9)
    await rig.do(create_pod())
    assert [pod.metadata.resource_version for pod in rig.store.pods_of(RUN, UID)] == ["9"]


OWNER = {"apiVersion": "clotho.dev/v1alpha1", "kind": "TrainingRun", "name": "r", "uid": UID, "controller": True}
OTHER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "another", "controller": True}
SECRET_KEY = ObjectKey("Secret", "r")


def owned(manifest: dict[str, Any], *owners: dict[str, Any]) -> dict[str, Any]:
    manifest["metadata"]["ownerReferences"] = list(owners)
    return manifest


@pytest.mark.parametrize("label", ["clotho.dev/owner-uid", "clotho.dev/run", "app.kubernetes.io/managed-by"])
@pytest.mark.parametrize("value", ["another", None])
async def test_own_object_that_lost_a_label_is_adopted(label: str, value: str | None) -> None:
    rig, changed = Rig(), list[Key]()
    rig.store.changed = changed.append
    found = owned(pod_body("trainer", 0), OWNER)
    found["metadata"]["labels"][label] = value
    rig.api.objects[POD_PATH] = {**found, "metadata": {**found["metadata"], "labels": without_none(found)}}
    await rig.do(Create(key=POD, manifest=owned(pod_body("trainer", 7), OWNER)))
    assert rig.api.requests[-1] == f"patch {POD_PATH}"
    assert rig.api.bodies[-1]["metadata"] == {"uid": "uid-trainer", "labels": {label: LABELS[label]}}
    assert [pod.name for pod in rig.store.pods_of(RUN, UID)] == ["r-trainer"]
    assert changed == [RUN], "it is planned again"


LABELS = pod_body("trainer")["metadata"]["labels"]


def without_none(body: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in body["metadata"]["labels"].items() if value is not None}


async def test_own_object_that_lost_its_owner_is_adopted() -> None:
    rig = Rig()
    rig.api.objects[POD_PATH] = pod_body("trainer", 9)
    await rig.do(Create(key=POD, manifest=owned(pod_body("trainer", 7), OWNER)))
    assert rig.api.bodies[-1]["metadata"] == {"uid": "uid-trainer", "ownerReferences": [OWNER]}


async def test_pod_that_is_gone_before_it_is_adopted_is_created_the_next_time() -> None:
    rig = Rig()
    rig.api.objects[POD_PATH] = pod_body("trainer", 0)
    rig.api.refusals["patch"] = NotFound("patch", "deleted meanwhile", 404)
    wanted = owned(pod_body("trainer", 7), OWNER)
    with pytest.raises(NotFound):
        await rig.do(Create(key=POD, manifest=wanted))
    del rig.api.objects[POD_PATH]
    await rig.do(Create(key=POD, manifest=wanted))
    assert rig.api.requests[-1] == CREATE_POD
    assert [pod.uid for pod in rig.store.pods_of(RUN, UID)] == ["uid-of-r-trainer"]


async def test_counters_in_labels_are_the_pods_own() -> None:
    rig = Rig()
    found, wanted = pod_body("trainer", 9), pod_body("trainer", 7)
    found["metadata"]["labels"] |= {"clotho.dev/attempt": "1", "clotho.dev/restarts": "0"}
    wanted["metadata"]["labels"] |= {"clotho.dev/attempt": "2", "clotho.dev/restarts": "1"}
    rig.api.objects[POD_PATH] = found
    await rig.do(Create(key=POD, manifest=wanted))
    assert not any(request.startswith("patch") for request in rig.api.requests)


@pytest.mark.parametrize(
    ("owners", "labels", "problem"),
    [
        ([OTHER], {"clotho.dev/owner-uid": UID}, "exists and belongs to Deployment web; delete it, then it is created"),
        ([], {"clotho.dev/owner-uid": "another"}, "has neither an owner nor the label clotho.dev/owner-uid"),
        ([], {}, "has neither an owner nor the label clotho.dev/owner-uid"),
    ],
)
@pytest.mark.parametrize("kind", [Create, Apply])
async def test_an_object_of_another_owner_is_left_alone_and_named(
    kind: type[Create] | type[Apply], owners: list[dict[str, Any]], labels: dict[str, str], problem: str
) -> None:
    rig = Rig()
    metadata = {"name": "r", "namespace": "ns", "uid": "s", "resourceVersion": "1", "labels": labels}
    theirs = {"metadata": metadata | {"ownerReferences": owners}, "spec": {"podSelector": {}}}
    path, key = (SECRET, SECRET_KEY) if kind is Create else (POLICY_PATH, POLICY)
    rig.api.objects[path] = theirs
    ours = owned({"metadata": {"name": "r", "namespace": "ns", "labels": {"clotho.dev/owner-uid": UID}}}, OWNER)
    with pytest.raises(Conflict):
        await rig.do(kind(key=key, manifest=ours | {"spec": {"podSelector": {"matchLabels": {}}}}))
    assert problem in rig.writer.refusals(a_run())[key].message
    assert rig.api.objects[path] == theirs
    del rig.api.objects[path]
    await rig.do(kind(key=key, manifest=ours))
    assert rig.writer.refusals(a_run()) == {}, "once it is gone, ours is created"


async def test_own_object_is_adopted_although_a_quota_refuses_another() -> None:
    rig = Rig()
    found = owned(pod_body("trainer", 9), OWNER)
    del found["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    rig.api.objects[POD_PATH] = found
    rig.api.refusals[CREATE_POD] = Forbidden("c", "exceeded quota", 403)
    await rig.do(Create(key=POD, manifest=owned(pod_body("trainer", 7), OWNER)))
    assert rig.api.bodies[-1]["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "clotho-operator"}


@pytest.mark.parametrize(
    ("error", "is_permanent"), [(Invalid("c", "bad", 422), True), (Forbidden("c", "quota", 403), False)]
)
async def test_a_refusal_is_kept_until_the_write_succeeds(error: ApiError, is_permanent: bool) -> None:
    rig = Rig()
    rig.api.refusals[CREATE_POD] = error
    with pytest.raises(type(error)):
        await rig.do(create_pod())
    refusal = rig.writer.refusals(a_run())[POD]
    assert (refusal.message, refusal.is_permanent) == (error.message, is_permanent)
    del rig.api.refusals[CREATE_POD]
    await rig.do(create_pod())
    assert rig.writer.refusals(a_run()) == {}


async def test_a_write_without_an_answer_is_looked_up_before_the_next_plan() -> None:
    rig = Rig()
    rig.api.refusals[CREATE_POD] = Transient("create", "time-out")
    with pytest.raises(Transient):
        await rig.do(create_pod())
    rig.api.objects[POD_PATH] = pod_body("trainer", 9)
    await rig.writer.settle(RUN)
    assert len(rig.store.pods_of(RUN, UID)) == 1
    rig.api.requests.clear()
    await rig.writer.settle(RUN)
    assert rig.api.requests == [], "looked up once"


async def test_random_keys_are_filled_and_differ() -> None:
    rig, key = Rig(), ObjectKey("Secret", "r")
    metadata = {"name": "r", "namespace": "ns"}
    secret = Create(key=key, manifest={"metadata": metadata, "data": {"run.yaml": ""}}, random_keys=("A", "B"))
    await rig.do(secret)
    data = rig.api.bodies[0]["data"]
    assert set(data) == {"A", "B", "run.yaml"}
    assert data["A"] != data["B"]
    assert len(data["A"]) > 40
    assert "A" not in secret.manifest["data"], "no token passes through a plan"


SECRET = "/api/v1/namespaces/ns/secrets/r"


async def apply_secret(existing: dict[str, str]) -> list[tuple[str, Any]]:
    """What is sent for a Secret that has these keys already: verb and data."""
    rig, key = Rig(), ObjectKey("Secret", "r")
    metadata = {"name": "r", "namespace": "ns", "labels": {"clotho.dev/owner-uid": UID}}
    rig.api.objects[SECRET] = {"metadata": metadata | {"uid": "s", "resourceVersion": "1"}, "data": existing}
    await rig.writer.refresh("ns", key)
    rig.api.requests.clear()
    rig.api.bodies.clear()
    manifest = {"metadata": metadata, "data": {"run.yaml": "new"}}
    await rig.do(Apply(key=key, manifest=manifest, random_keys=objects.TOKEN_KEYS))
    sent = zip(rig.api.requests, rig.api.bodies, strict=True)
    return [(request.partition(" ")[0], body["data"]) for request, body in sent if body]


async def test_a_secret_with_one_token_for_all_roles_keeps_working() -> None:
    """The running pods have only that token, so every role of theirs gets it; a run made later has one per role."""
    sent = await apply_secret({"run.yaml": "", "CLOTHO_TOKEN": "dA==", "CLOTHO_ADMIN_TOKEN": "YQ=="})
    (_, tokens), config = sent
    assert {key: tokens[key] for key in objects.ROLE_KEYS} == dict.fromkeys(objects.ROLE_KEYS, "dA==")
    assert set(tokens) - set(objects.ROLE_KEYS) == {"CLOTHO_INFERENCE_TOKEN"}, "of pods that do not exist yet"
    assert tokens["CLOTHO_INFERENCE_TOKEN"] != "dA=="
    assert config == ("patch", {"run.yaml": "new"})


async def test_tokens_that_exist_are_left_alone() -> None:
    tokens = dict.fromkeys(objects.TOKEN_KEYS, "dA==")
    assert await apply_secret({"run.yaml": "", **tokens}) == [("patch", {"run.yaml": "new"})]


EMPTY = {"CLOTHO_TRAINER_TOKEN": ""}
MADE = {"clotho.dev/token-keys": "CLOTHO_ADMIN_TOKEN,CLOTHO_TRAINER_TOKEN"}


@pytest.mark.parametrize(
    ("left", "annotations", "is_revised"), [({}, MADE, True), (EMPTY, MADE, True), (EMPTY, {}, True), ({}, {}, False)]
)
async def test_removed_and_emptied_tokens_are_made_again_and_void_those_of_pods(
    left: dict[str, str], annotations: dict[str, str], is_revised: bool
) -> None:
    """A key that only this version of the operator has is in no pod: an upgrade restarts nothing."""
    tokens = {key: "dA==" for key in objects.TOKEN_KEYS if key != "CLOTHO_TRAINER_TOKEN"} | left
    rig, key = Rig(), ObjectKey("Secret", "r")
    metadata = {"name": "r", "namespace": "ns", "labels": {"clotho.dev/owner-uid": UID}, "annotations": annotations}
    rig.api.objects[SECRET] = {"metadata": metadata | {"uid": "s", "resourceVersion": "1"}, "data": tokens}
    await rig.do(Apply(key=key, manifest={"metadata": metadata, "data": {}}, random_keys=objects.TOKEN_KEYS))
    (added,) = [body for body in rig.api.bodies if body and "CLOTHO_TRAINER_TOKEN" in body["data"]]
    assert set(added["data"]) == {"CLOTHO_TRAINER_TOKEN"}
    assert added["data"]["CLOTHO_TRAINER_TOKEN"] not in ("", "dA==")
    assert ("clotho.dev/tokens" in added["metadata"]["annotations"]) is is_revised


async def test_a_token_that_was_edited_is_kept_and_voids_those_of_pods() -> None:
    made = dict.fromkeys(objects.TOKEN_KEYS, "dA==")
    edited = made | {"CLOTHO_TRAINER_TOKEN": "bmV3"}
    rig, key = Rig(), ObjectKey("Secret", "r")
    annotations = {"clotho.dev/token-digests": objects.token_digests(made)}
    metadata = {"name": "r", "namespace": "ns", "labels": {"clotho.dev/owner-uid": UID}, "annotations": annotations}
    rig.api.objects[SECRET] = {"metadata": metadata | {"uid": "s", "resourceVersion": "1"}, "data": edited}
    await rig.do(Apply(key=key, manifest={"metadata": metadata, "data": {}}, random_keys=objects.TOKEN_KEYS))
    change = rig.api.bodies[1]
    assert change["data"] == {}
    assert change["metadata"]["annotations"]["clotho.dev/token-digests"] == objects.token_digests(edited)
    assert "clotho.dev/tokens" in change["metadata"]["annotations"]


def delete_pod() -> Delete:
    return Delete(key=POD, uid="uid-trainer", resource_version="7", grace_seconds=5)


async def test_a_deletion_has_the_uid_of_the_object() -> None:
    rig = Rig()
    await rig.do(create_pod())
    await rig.do(delete_pod())
    options = rig.api.bodies[-1]
    assert (options.preconditions.uid, options.preconditions.resource_version) == ("uid-trainer", "7")
    assert options.grace_period_seconds == 5
    assert [pod.is_terminating for pod in rig.store.pods_of(RUN, UID)] == [True]


async def test_deleting_what_is_gone_is_success() -> None:
    rig = Rig()
    await rig.do(create_pod())
    del rig.api.objects[POD_PATH]
    await rig.do(delete_pod())
    assert rig.store.pods_of(RUN, UID) == ()


async def test_a_conflict_refreshes_the_cache_and_is_raised() -> None:
    rig = Rig()
    rig.store.handle_event("TrainingRun", False, run_body(1))
    path = "/apis/clotho.dev/v1alpha1/namespaces/ns/trainingruns/r"
    rig.api.refusals[f"replace {path}/status"] = Conflict("replace", "changed", 409)
    rig.api.objects[path] = run_body(5)
    with pytest.raises(Conflict):
        await rig.writer.write_status(a_run(), a_run().status)
    fresh = rig.store.run(RUN)
    assert fresh is not None
    assert fresh.metadata.resource_version == "5"


async def test_a_run_that_is_gone_when_it_is_read_again_is_noted_as_removed() -> None:
    """Its claim is cleaned up by that note; what the watch has yet to report is older."""
    rig = Rig()
    rig.store.handle_event("TrainingRun", False, run_body(1))
    path = "/apis/clotho.dev/v1alpha1/namespaces/ns/trainingruns/r"
    rig.api.refusals[f"replace {path}/status"] = Conflict("replace", "changed", 409)
    with pytest.raises(Conflict):
        await rig.writer.write_status(a_run(), a_run().status)
    rig.store.handle_event("TrainingRun", False, run_body(5))
    assert rig.store.run(RUN) is None
    assert [run.metadata.uid for run in rig.store.removed_runs.values()] == [UID]


async def test_own_object_that_no_watch_selects_is_known_once_it_was_found() -> None:
    """Without the label that watches select by, it exists, and every plan would create it again."""
    rig = Rig()
    rig.store.handle_event("Pod", False, pod_body("trainer", 7))
    rig.store.handle_event("Pod", True, pod_body("trainer", 8))
    rig.api.objects[POD_PATH] = pod_body("trainer", 8)
    await rig.do(create_pod())
    assert [pod.metadata.resource_version for pod in rig.store.pods_of(RUN, UID)] == ["8"]


def validate_pod() -> Validate:
    return Validate(key=POD, manifest=pod_body("trainer", 7))


async def test_a_dry_run_is_remembered_and_makes_nothing() -> None:
    rig = Rig()
    assert not rig.writer.has_validated(a_run())
    await rig.do(validate_pod())
    assert rig.writer.has_validated(a_run())
    assert len(rig.store.pods) == 0


@pytest.mark.parametrize(
    ("message", "is_valid"), [("unknown field", False), ("admission webhook x does not support dry run", True)]
)
async def test_a_refused_dry_run_is_kept_unless_a_webhook_cannot_do_it(message: str, is_valid: bool) -> None:
    rig = Rig()
    rig.api.refusals[CREATE_POD] = Invalid("create pod", message, 400)
    if is_valid:
        await rig.do(validate_pod())
    else:
        with pytest.raises(Invalid):
            await rig.do(validate_pod())
    assert rig.writer.has_validated(a_run()) is is_valid
    assert (POD in rig.writer.refusals(a_run())) is not is_valid
