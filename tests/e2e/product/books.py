"""What a run's API server has on disk at the end: every group it ever took, and what became of each."""

from __future__ import annotations

import json
from dataclasses import dataclass

from e2e.product.runs import Object, Runs
from rig.pods import Pods

# Ids are given out in order and never again, so the highest is the number of groups ever taken.
_READ = """
import glob, json, sqlite3
(path,) = glob.glob("/data/**/trajectories.sqlite3", recursive=True)
ask = sqlite3.connect(path).execute
taken = ask("SELECT seq FROM sqlite_sequence WHERE name = 'groups'").fetchone()[0]
trained = ask("SELECT step, groups FROM batches WHERE state IN ('trained', 'done') ORDER BY step").fetchall()
waiting = ask(
    "SELECT count(*) FROM groups LEFT JOIN batches ON batch = batches.id"
    " WHERE batch IS NULL OR batches.state IN ('leased', 'returned')"
).fetchone()[0]
steps, groups = zip(*trained)
print(json.dumps({"taken": taken, "waiting": waiting, "steps": steps, "trained": sum(groups)}))
"""


@dataclass(frozen=True)
class Books:
    taken: int
    waiting: int
    trained: int
    steps: list[int]

    @staticmethod
    def of(reader: Pods, claim: str) -> Books:
        return Books(**json.loads(reader.run("accountant", _READ, claim=claim)))

    @staticmethod
    def of_finished(runs: Runs, name: str, reader: Pods) -> Books:
        """Once the API server has ended, for the claim is on one node at a time."""
        selector = f"--selector=app.kubernetes.io/instance={name},app.kubernetes.io/component=api-server"
        (claim,) = runs.kubectl.get("persistentvolumeclaims", selector)["items"]
        runs.wait(name, "without its API server", lambda _: runs.pods(name, "api-server") == [])
        return Books.of(reader, claim["metadata"]["name"])

    def check(self, run: Object) -> None:
        """Every group is trained once or waits, and every step has the one batch that it trained."""
        training, (environment,) = run["spec"]["training"], run["spec"]["environments"]
        assert self.taken == self.trained + self.waiting
        assert self.steps == list(range(1, training["steps"] + 1))
        assert self.trained == training["steps"] * training["batchSize"] // environment["config"]["group_size"]
