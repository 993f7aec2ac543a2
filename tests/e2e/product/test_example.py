"""The example run, from apply to trained weights, with what a person sees on the way."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

from e2e.product.page import PageWatch
from e2e.product.runs import Runs, condition, letters
from rig.pods import Pods

STEPS = 120


class Clock:
    """When lines of a `kubectl get --watch` first satisfied a condition, by this process's own clock."""

    def __init__(self, runs: Runs, *arguments: str) -> None:
        kubectl = runs.kubectl
        argv = [str(kubectl.program), f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}"]
        self.process = subprocess.Popen(
            [*argv, "get", *arguments, "--watch", "--no-headers"], stdout=subprocess.PIPE, text=True
        )
        self.lines: list[tuple[float, list[str]]] = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for line in self.process.stdout or []:
            self.lines.append((time.monotonic(), line.split()))

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate()
        self.thread.join()


def test_example_learns_and_leaves_its_weights(runs: Runs, python_image: str, tmp_path: Path) -> None:
    page = PageWatch(runs.kubectl, "letters", tmp_path / "browser")
    page.start()
    pods_clock = Clock(
        runs, "pods", "-o=custom-columns=N:.metadata.name,R:.status.conditions[?(@.type=='Ready')].status"
    )
    run_clock = Clock(runs, "trainingruns", "-o=custom-columns=N:.metadata.name,P:.status.phase")
    applied = time.monotonic()
    runs.kubectl.apply(letters("letters"))
    running = runs.wait_for_phase("letters", "Running", "Completed")
    assert running["status"]["observedGeneration"] == running["metadata"]["generation"]

    done = runs.wait_for_phase("letters", "Completed", "Failed")
    pods_clock.stop()
    run_clock.stop()
    status = done["status"]
    assert status["phase"] == "Completed", status["message"]
    assert status["results"]["rewardMean"] > 0.8, status["history"]
    assert status["results"]["step"] == STEPS
    assert status["progress"]["engine"] == "transformers", "on a CPU"
    assert status["history"][0]["rewardMean"] < 0.2
    assert len(status["history"]) <= 10
    assert condition(done, "Succeeded") == "True"
    assert condition(done, "Ready") == "True"
    _check_columns_and_events(runs)
    page.finish()

    reader = Pods(runs.kubectl, python_image)
    path = status["results"]["path"].removeprefix("/var/lib/clotho/")
    listed = reader.run(
        "reader", f"import os; print(sorted(os.listdir('/data/{path}')))", claim=status["results"]["claim"]
    )
    assert "adapter_model.safetensors" in listed
    assert "training_config.json" in listed

    ready = {words[0]: at for at, words in reversed(pods_clock.lines) if words[1] == "True" and words[0] != "reader"}
    started = next(at for at, words in run_clock.lines if words[1] == "Running") - applied
    containers = max(ready.values()) - applied
    print(f"\napply -> Running {started:.1f} s, of which the containers needed {containers:.1f} s")


def _check_columns_and_events(runs: Runs) -> None:
    header, row = runs.kubectl.run("get", "tr", "letters").splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "STEP", "REWARD", "RESTARTS", "AGE", "MESSAGE"]
    assert row.split()[:4] == ["letters", "Completed", "True", f"{STEPS}/{STEPS}"]
    runs.wait("letters", "announced", lambda _: {"Running", "Completed"} <= _reasons_of_events(runs))


def _reasons_of_events(runs: Runs) -> set[str]:
    events = runs.kubectl.get("events", "--field-selector=involvedObject.name=letters")["items"]
    return {event["reason"] for event in events}
