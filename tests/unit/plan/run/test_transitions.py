"""The complete transition table: every event in every phase."""

from collections.abc import Callable
from itertools import product
from typing import get_args

import pytest

from clotho.api.phases import Phase
from unit.plan.kstatus import kstatus
from unit.plan.run.world import World, minimal_spec, running_world

PHASES: tuple[Phase, ...] = get_args(Phase)
SPEC = {"deadlineSeconds": 7200, "restarts": {"limit": 1}, "stall": {"afterSeconds": 600}, "inference": {"replicas": 1}}


def pending(replicas: int = 1) -> World:
    return World(minimal_spec(**SPEC, trainer={"replicas": replicas}))


def starting(replicas: int = 1) -> World:
    world = pending(replicas)
    world.settle()
    assert world.phase == "Starting"
    return world


def running(replicas: int = 1) -> World:
    return running_world(**SPEC, trainer={"replicas": replicas})


def stopping(replicas: int = 1) -> World:
    world = running(replicas)
    world.change_spec(stop=True)
    world.reconcile()
    return world


def stopped(replicas: int = 1) -> World:
    world = running(replicas)
    world.change_spec(stop=True)
    return brought_down(world)


def suspended(replicas: int = 1) -> World:
    world = running(replicas)
    world.change_spec(suspend=True)
    return brought_down(world)


def completed(replicas: int = 1) -> World:
    world = running(replicas)
    world.make_progress(100, "finished")
    return brought_down(world)


def failed(replicas: int = 1) -> World:
    world = running(replicas)
    world.end_pod(world.named("trainer"), 2, reason="InvalidConfig")
    return brought_down(world)


def brought_down(world: World) -> World:
    for _ in range(6):
        world.settle()
        world.terminate()
    return world


WORLDS: dict[Phase, Callable[..., World]] = {
    "Pending": pending,
    "Starting": starting,
    "Running": running,
    "Stopping": stopping,
    "Stopped": stopped,
    "Completed": completed,
    "Failed": failed,
    "Suspended": suspended,
}


def crash(component: str, *codes: int, **words: object) -> Callable[[World], None]:
    def happen(world: World) -> None:
        for code in codes:
            world.end_pod(world.named(component), code, **words)  # type: ignore[arg-type]

    return happen


def crash_twice(world: World) -> None:
    """The second time, the budget of one restart is spent."""
    for _ in range(2):
        world.end_pod(world.named("trainer"), 1)
        world.settle()
        world.advance(60)
        world.settle()
        world.terminate("trainer")
        world.settle()


def lose_trainer(world: World) -> None:
    world.pods.pop(world.named("trainer"))


def everything_ready(world: World) -> None:
    world.named("trainer")
    world.start_all()


EVENTS: dict[str, Callable[[World], object]] = {
    "nothing": lambda world: None,
    "everything ready": everything_ready,
    "trainer pod vanishes": lose_trainer,
    "trainer crashes": crash("trainer", 1),
    "trainer crashes again": crash_twice,
    "trainer config invalid": crash("trainer", 2, reason="InvalidConfig"),
    "trainer evicted": crash("trainer", 137, pod_reason="Evicted"),
    "trainer exits early": crash("trainer", 0, reason="Finished", step=40),
    "trainer finishes": crash("trainer", 0, reason="Finished", step=100),
    "environment crashes": crash("environment", 1),
    "replica crashes": crash("inference", 1),
    "replica vanishes": lambda world: world.pods.pop(world.named("inference")),
    "API server crashes": crash("api-server", 1),
    "stop": lambda world: world.change_spec(stop=True),
    "suspend": lambda world: world.change_spec(suspend=True),
    "resume": lambda world: world.change_spec(suspend=False),
    "deadline passes": lambda world: world.advance(8000),
    "stall": lambda world: world.advance(700),
    "pods are gone": lambda world: world.terminate(),
    "steps raised": lambda world: world.change_spec(training={"steps": 200}),
}

# One row an event, one column a phase; "-": it cannot happen there, because there is no such pod.
TABLE = """
event                  | Pending   | Starting  | Running   | Stopping  | Stopped | Completed | Failed | Suspended
nothing                | Starting  | Starting  | Running   | Stopping  | Stopped | Completed | Failed | Suspended
everything ready       | -         | Running   | Running   | Stopping  | -       | Completed | Failed | -
trainer pod vanishes   | -         | Starting  | Starting  | Stopping  | -       | Completed | Failed | -
trainer crashes        | -         | Starting  | Starting  | Stopping  | -       | Completed | Failed | -
trainer crashes again  | -         | Failed    | Failed    | Stopping  | -       | Completed | Failed | -
trainer config invalid | -         | Failed    | Failed    | Stopping  | -       | Completed | Failed | -
trainer evicted        | -         | Starting  | Starting  | Stopping  | -       | Completed | Failed | -
trainer exits early    | -         | Starting  | Starting  | Stopping  | -       | Completed | Failed | -
trainer finishes       | -         | Completed | Completed | Completed | -       | Completed | Failed | -
environment crashes    | -         | Starting  | Running   | Stopping  | -       | -         | -      | -
replica crashes        | -         | Starting  | Running   | Stopping  | -       | -         | -      | -
replica vanishes       | -         | Starting  | Running   | Stopping  | -       | -         | -      | -
API server crashes     | -         | Starting  | Starting  | Stopping  | -       | Completed | -      | -
stop                   | Stopped   | Stopped   | Stopping  | Stopping  | Stopped | Completed | Failed | Stopped
suspend                | Suspended | Suspended | Stopping  | Stopping  | Stopped | Completed | Failed | Suspended
resume                 | Starting  | Starting  | Running   | Stopping  | Stopped | Completed | Failed | Starting
deadline passes        | Starting  | Failed    | Failed    | Failed    | Stopped | Completed | Failed | Suspended
stall             | Starting  | Starting  | Running   | Stopping  | Stopped | Completed | Failed | Suspended
pods are gone          | Starting  | Starting  | Running   | Stopping  | Stopped | Completed | Failed | Suspended
steps raised           | Starting  | Starting  | Running   | Stopping  | Stopped | Completed | Failed | Suspended
"""


def cells() -> dict[tuple[str, str], str]:
    header, *rows = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]
    return {(row[0], phase): cell for row in rows for phase, cell in zip(header[1:], row[1:], strict=True)}


def test_table_has_every_event_and_phase() -> None:
    assert set(cells()) == set(product(EVENTS, PHASES))


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(("event", "phase"), list(product(EVENTS, PHASES)))
def test_event_in_a_phase_leads_to_the_expected_phase(event: str, phase: Phase, replicas: int) -> None:
    """A trainer of several pods behaves as one of a single pod."""
    world = WORLDS[phase](replicas)
    assert world.phase == phase
    try:
        EVENTS[event](world)
    except IndexError:
        assert cells()[event, phase] == "-"
        return
    world.settle()
    assert world.phase == cells()[event, phase]


VERDICTS = {
    "Pending": "InProgress",
    "Starting": "InProgress",
    "Running": "Current",
    "Stopping": "InProgress",
    "Stopped": "Current",
    "Completed": "Current",
    "Failed": "Failed",
    "Suspended": "Current",
}


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_the_right_kstatus(phase: Phase) -> None:
    assert kstatus(WORLDS[phase]().run) == VERDICTS[phase]
