"""The writer: what it sends, which refusals it keeps, and how it handles errors and missing answers."""

from typing import Any

import pytest

from clotho.cluster.apply import NotLeader, Writer
from clotho.cluster.cache import Key
from clotho.cluster.outcomes import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, Transient
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
    labels = {"clotho.dev/run": "r", "clotho.dev/owner-uid": UID}
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


@pytest.mark.parametrize("label", ["clotho.dev/owner-uid", "clotho.dev/run"])
async def test_a_name_taken_by_another_run_is_an_error(label: str) -> None:
    rig = Rig()
    foreign = pod_body("trainer", 9)
    foreign["metadata"]["labels"][label] = "another"
    rig.api.objects[POD_PATH] = foreign
    with pytest.raises(AlreadyExists):
        await rig.do(create_pod())


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
    metadata = {"name": "r", "namespace": "ns"}
    rig.api.objects[SECRET] = {"metadata": metadata | {"uid": "s", "resourceVersion": "1"}, "data": existing}
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
    del tokens["CLOTHO_TRAINER_TOKEN"]
    (added, _) = await apply_secret({"run.yaml": "", **tokens})
    assert set(added[1]) == {"CLOTHO_TRAINER_TOKEN"}
    assert added[1]["CLOTHO_TRAINER_TOKEN"] != "dA=="


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
