"""Random histories of pods, users and operator crashes: the invariants hold in each."""

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from clotho.api.names import GENERATION_ANNOTATION, RESTARTS_LABEL
from clotho.api.phases import FINISHED_PHASES
from clotho.api.training_policy import parse
from clotho.plan.model import RESTARTING, Delete
from unit.plan.kstatus import kstatus
from unit.plan.run.world import World, minimal_spec

pod_choice = st.integers(0, 5)
kubelet = st.one_of(
    st.tuples(st.just("start"), pod_choice),
    st.tuples(st.just("unready"), pod_choice),
    st.tuples(st.just("crash"), pod_choice),
    st.tuples(st.just("oom"), pod_choice),
    st.tuples(st.just("evict"), pod_choice),
    st.tuples(st.just("exit"), pod_choice),
    st.tuples(st.just("start_all"), st.none()),
    st.tuples(st.just("terminate"), st.none()),
)
people = st.one_of(
    st.tuples(st.just("delete"), pod_choice),
    st.tuples(st.just("replicas"), st.integers(0, 3)),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("stop"), st.just(True)),
    st.tuples(st.just("steps"), st.integers(101, 200)),
    st.tuples(st.just("delete_secret"), st.none()),
)
time_and_training = st.one_of(
    st.tuples(st.just("advance"), st.integers(1, 3000)),
    st.tuples(st.just("step"), st.integers(0, 99)),
    st.tuples(st.just("finish"), st.none()),
)
crash = st.tuples(st.just("killed_after"), st.integers(0, 8))
orderly = st.one_of(
    st.tuples(st.sampled_from(["start", "ends", "is_removed"]), pod_choice),
    st.tuples(st.sampled_from(["start_all", "terminate"]), st.none()),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("replicas"), st.integers(0, 3)),
    st.tuples(st.just("steps"), st.integers(101, 200)),
    st.tuples(st.just("advance"), st.integers(1, 100)),
    crash,
)
histories = st.lists(st.one_of(kubelet, kubelet, time_and_training, people, crash), max_size=40)


def happen(world: World, what: str, argument: Any) -> None:  # noqa: PLR0912 - one branch an event
    names = sorted(world.pods)
    name = names[argument % len(names)] if names and isinstance(argument, int) else ""
    is_terminating = bool(name) and "deletionTimestamp" in world.pods[name]["metadata"]
    match what:
        case "start" | "unready" if name:
            world.start_pod(name, ready=what == "start")
        case "crash" if name:
            world.end_pod(name, 1)
        case "oom" if name:
            world.end_pod(name, 137, container_reason="OOMKilled")
        case "evict" if name:
            world.end_pod(name, 137, pod_reason="Evicted")
        case "exit" if name:
            world.end_pod(name, 0)
        case "delete" if name:
            world.delete_pod(name)
        case "start_all":
            world.start_all()
        case "terminate":
            world.terminate()
        case "ends" if is_terminating:
            world.end_pod(name, 0, reason="Stopped")
        case "is_removed" if is_terminating:
            del world.pods[name]
        case "advance":
            world.advance(argument)
        case "step" | "finish" if "trainer" in world.components():
            steps = world.spec["training"]["steps"]
            world.make_progress(steps if what == "finish" else argument, "finished" if what == "finish" else "training")
        case "replicas":
            world.change_spec(environments=[world.spec["environments"][0] | {"replicas": argument}])
        case "suspend" | "stop":
            world.change_spec(**{what: argument})
        case "steps" if world.phase not in FINISHED_PHASES and argument > world.spec["training"]["steps"]:
            world.change_spec(training={"steps": argument})
        case "delete_secret":
            for key in [key for key in world.objects if key.kind == "Secret"]:
                del world.objects[key]
        case "killed_after":
            world.carry_out(world.plan(), writes=argument)


def reported(world: World) -> set[int]:
    """Steps that the status may show now: the last answer's, and none before the first."""
    answer = world.probes.trainer.answer if world.probes.trainer else None
    return {answer.step} if answer is not None else {0}


def attempts_of_trainers(world: World) -> set[str]:
    return {
        pod["metadata"]["labels"]["clotho.dev/attempt"]
        for pod in world.pods.values()
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "trainer"
    }


@given(histories, st.sampled_from(["Report", "Restart"]), st.sampled_from([1, 3]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_invariants_hold_in_every_history(history: list[tuple[str, Any]], stall_action: str, replicas: int) -> None:
    stall = {"afterSeconds": 600, "action": stall_action}
    world = World(minimal_spec(stall=stall, trainer={"replicas": replicas}))
    attempt = step = restarts = 0
    ended: str | None = None
    for what, argument in history:
        happen(world, what, argument)
        world.reconcile()
        status = world.now_status
        assert len(attempts_of_trainers(world)) <= 1, "no attempt starts before all pods of the last are gone"
        assert status.attempt >= attempt, "attempts never go back"
        attempt = status.attempt
        assert status.restarts >= restarts, "restarts never go back"
        restarts = status.restarts
        reached = status.progress.step if status.progress else 0
        assert reached in (step, *reported(world)), "only steps that a trainer has reported"
        step = reached
        assert ended in (None, status.phase), f"{ended} is final, but became {status.phase}"
        ended = status.phase if status.phase in FINISHED_PHASES else None
        assert len(status.history) <= 10
        kstatus(world.run)  # raises where conditions contradict each other
    assert_rest(world)
    event(world.phase)


@example([("start_all", None), ("suspend", True), ("suspend", False), ("terminate", None)], 1)
@example([("start_all", None), ("suspend", True), *[("terminate", None)] * 2, ("suspend", False), ("ends", 0)], 3)
@example([*[("start_all", None)] * 2, ("replicas", 1), ("replicas", 2), ("terminate", None)], 1)
@given(st.lists(orderly, max_size=50), st.sampled_from([1, 3]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_pods_that_the_operator_removes_are_no_restarts(history: list[tuple[str, Any]], replicas: int) -> None:
    world = World(minimal_spec(trainer={"replicas": replicas}))
    for what, argument in history:
        happen(world, what, argument)
        world.reconcile()
        counts = {pod["metadata"]["labels"][RESTARTS_LABEL] for pod in world.pods.values()}
        assert (world.now_status.restarts, counts - {"0"}) == (0, set())
        assert RESTARTING not in world.events
    assert_rest(world)
    assert world.now_status.restarts == 0
    event(world.phase)


def assert_rest(world: World) -> None:
    """Convergent: left alone, the run gets where it should be. Idempotent: then a pass writes nothing."""
    for _ in range(12):
        world.settle(passes=60)
        world.terminate()
        if not (world.spec.get("stop") or world.spec.get("suspend")):
            world.start_all()
        world.advance(700)  # beyond every backoff
    world.settle(passes=60)
    expected = {"Stopped", "Completed", "Failed"}
    if not world.spec.get("stop"):
        expected |= {"Suspended"} if world.spec.get("suspend") else {"Running"}
    assert world.phase in expected
    again = world.plan()
    assert again.actions == ()
    assert again.status is None
    if world.phase in ("Stopped", "Suspended"):
        assert not world.pods
    if world.phase in ("Completed", "Failed"):
        assert all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in world.pods.values())


@given(histories)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_planning_twice_gives_the_same_plan(history: list[tuple[str, Any]]) -> None:
    world = World()
    for what, argument in history:
        happen(world, what, argument)
        assert world.plan() == world.plan()
        world.reconcile()


@pytest.mark.parametrize(("replicas", "writes"), [*product([1], range(10)), *product([3], range(13))])
def test_an_operator_killed_after_any_write_of_the_start_converges_to_the_same_end(replicas: int, writes: int) -> None:
    reference, world = (World(minimal_spec(trainer={"replicas": replicas})) for _ in range(2))
    reference.settle()
    world.carry_out(world.plan(), writes=writes)
    world.settle()
    assert set(world.pods) == set(reference.pods)
    assert set(world.objects) == set(reference.objects)
    world.start_all()
    world.settle()
    assert (world.phase, world.now_status.attempt, world.now_status.restarts) == ("Running", 1, 0)


@pytest.mark.parametrize("writes", range(4))
def test_an_operator_killed_after_any_write_of_a_stop_keeps_the_order(writes: int) -> None:
    world = World()
    world.settle()
    world.start_all()
    world.settle()
    world.change_spec(stop=True)
    order = []
    for _ in range(12):
        wanted = world.plan()
        order += [action.key.name for action in wanted.actions if isinstance(action, Delete)]
        world.carry_out(wanted, writes=writes)
        world.reconcile()
        world.terminate()
    world.settle()
    assert world.phase == "Stopped"
    assert not world.pods
    assert [name.rsplit("-", 1)[-1] for name in dict.fromkeys(order)][-2:] == ["trainer", "server"]


administrators = st.one_of(
    st.tuples(st.just("policy"), st.sampled_from([None, 2, 4])),
    st.tuples(st.just("ahead"), st.integers(0, 2)),
)


@example(("policy", 2), [("ahead", 2), ("replicas", 0)])
@given(
    st.tuples(st.just("policy"), st.sampled_from([2, 4])),
    st.lists(st.one_of(kubelet, people, crash, administrators, administrators), max_size=30),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_run_lives_and_ends_under_the_policy_it_was_started_under(
    first: tuple[str, Any], history: list[tuple[str, Any]]
) -> None:
    world = World()
    for what, argument in (first, *history):
        if what == "ahead":
            world.runs_ahead = argument
        elif what == "policy":
            spec = {"locked": {"trainer": {"gpus": argument}}, "limits": {"activeRuns": 2}}
            found = parse({"metadata": {"name": "team"}, "spec": spec})
            world.policies = (found,) if argument else ()
        else:
            happen(world, what, argument)
        before = world.now_status.policy
        world.reconcile()
        status = world.now_status
        assert before in (None, status.policy) or not status.attempt, (
            "until the trainer starts, a change is judged anew"
        )
        made = [pod for pod in world.pods.values() if status.attempt or is_current(world, pod)]
        assert not (status.queued_since and made), (
            "a queued run has no pods but those of an earlier spec, on their way out"
        )
        gpus = status.policy.locked["trainer"]["gpus"] if status.policy else 1
        assert {gpus_of(pod) for pod in made} <= {gpus, None}
        kstatus(world.run)
    world.policies, world.runs_ahead = (), 0
    assert_rest(world)
    event(f"{world.phase}, {'governed' if world.now_status.policy else 'free'}")


def is_current(world: World, pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["annotations"][GENERATION_ANNOTATION] == str(world.generation))


def gpus_of(pod: dict[str, Any]) -> int | None:
    """None for pods that never have any."""
    if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "trainer":
        return None
    gpus: int = pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    return gpus
