"""What release 0.1.0, rolled back to, reads of the status that today's operator wrote: its own code is asked."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from unit.plan.run.world import World, running_world

OLD_OPERATOR = Path(__file__).parents[2] / "fixtures" / "release-0.1.0" / "operator" / "operator.zip"
READ = """
import json, sys
from clotho.api.training_run import parse
print(parse(json.load(sys.stdin)).status.phase)
"""


def phase_in_0_1_0(world: World) -> str:
    body: dict[str, Any] = {
        "metadata": msgspec.to_builtins(world.run.metadata),
        "spec": world.spec,
        "status": world.status,
    }
    environment = {**os.environ, "PYTHONPATH": str(OLD_OPERATOR)}
    argv = [sys.executable, "-c", READ]
    given = json.dumps(body)
    done = subprocess.run(argv, input=given, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def end(world: World) -> None:
    for _ in range(6):
        world.settle()
        world.terminate()
        world.advance(61)


def test_run_that_trains_is_read() -> None:
    world = running_world()
    world.make_progress(7)
    world.advance(60)
    world.settle()
    assert phase_in_0_1_0(world) == "Running"


def test_run_that_0_1_0_finished_stays_finished() -> None:
    world = running_world()
    world.make_progress(100, "finished")
    world.settle()
    newer = ("Finished", "Failed")
    world.status["conditions"] = [each for each in world.status["conditions"] if each["type"] not in newer]
    end(world)
    assert (world.phase, world.pods) == ("Completed", {})
    assert phase_in_0_1_0(world) == "Completed"


def test_run_finished_by_a_newer_release_is_forgotten_as_the_documentation_warns() -> None:
    world = running_world()
    world.make_progress(100, "finished")
    end(world)
    assert (world.phase, phase_in_0_1_0(world)) == ("Completed", "Pending")
