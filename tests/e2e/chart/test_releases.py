"""Upgrade from release 0.1.0 to today's chart and roll back while runs are in flight: they continue in the same pods.

Chart, CRDs and operator are those of 0.1.0 (tests/fixtures/release-0.1.0); the pods of runs have today's images.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from clotho_dev import REPOSITORY
from clotho_dev.cluster import binaries, images
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.target import Embedded
from rig.helm_release import CHART, LIMIT_SECONDS, RELEASE, ExampleRun, Helm
from rig.port_forward import forwarded

pytestmark = pytest.mark.timeout(900)
OLD = REPOSITORY / "tests" / "fixtures" / "release-0.1.0"
Json = dict[str, Any]


@dataclass(frozen=True)
class Fleet:
    """Runs in the states that an upgrade meets, all of them made by 0.1.0."""

    training: ExampleRun
    suspended: ExampleRun
    completed: ExampleRun


@dataclass(frozen=True)
class Before:
    """A run that trains, as it was before its operator was replaced."""

    run: ExampleRun
    pods: dict[str, str]
    step: int

    @classmethod
    def of(cls, run: ExampleRun) -> Before:
        return cls(run, run.pods(), run.step())

    def check_that_it_continues(self) -> None:
        after = self.run.until_trained(max(self.step, self.run.step()) + 5)
        assert self.run.pods() == self.pods
        assert after["status"]["restarts"] == 0
        assert after["status"]["phase"] == "Running"
        assert self.run.kstatus() == "Current"


@pytest.fixture(scope="module")
def runs(kubectl: Kubectl, release_namespace: str) -> Iterator[dict[str, ExampleRun]]:
    inside, kstatus = kubectl.in_namespace(release_namespace), binaries.find(["kstatus"])["kstatus"]
    found = {name: ExampleRun(inside, kstatus, name) for name in ("training", "suspended", "completed", "stopped")}
    yield found
    for run in found.values():
        run.delete()


@pytest.fixture(scope="module")
def fleet(helm: Helm, embedded: Embedded, values: tuple[str, ...], runs: dict[str, ExampleRun]) -> Fleet:
    """Under release 0.1.0."""
    operator = images.provide_derived(embedded.folder, "operator-0.1.0", "operator", OLD / "operator")
    helm.upgrade(OLD / "chart", *values, f"images.operator={operator}")
    fleet = Fleet(runs["training"], runs["suspended"], runs["completed"])
    fleet.completed.start(steps=3)
    fleet.completed.until_phase("Completed")
    fleet.suspended.start(steps=5000)
    fleet.suspended.until_trained(2)
    fleet.suspended.change(suspend=True)
    fleet.suspended.until_phase("Suspended")
    fleet.training.start(steps=5000)
    until_reported_by_0_1_0(fleet.training)
    return fleet


def until_reported_by_0_1_0(run: ExampleRun) -> Json:
    """Today's operator words it otherwise: `Training: step 5/9.`"""
    return run.until("reported by 0.1.0", lambda body: body.get("status", {}).get("message", "").endswith(" is done."))


def until_refused_by_0_1_0(run: ExampleRun) -> None:
    """A watch that is open yields objects of the old CRD for some seconds more, and a run that rests without changes
    yields none."""

    def is_refused(body: Json) -> bool:
        run.annotate("example.com/written-at", str(time.monotonic_ns()))
        return "unknown field" in body["status"]["message"]

    run.until("refused by 0.1.0", is_refused)


@pytest.fixture(scope="module")
def upgraded(kubectl: Kubectl, helm: Helm, fleet: Fleet, values: tuple[str, ...]) -> Before:
    """As docs/upgrading.md has it: the release's own values are kept, and today's operator comes with today's chart.

    The CRDs come first, and long enough before the operator that 0.1.0 refuses specs with fields unknown to it.
    """
    before = Before.of(fleet.training)
    as_helm = ("--server-side", "--force-conflicts", "--field-manager=helm")
    kubectl.run("apply", *as_helm, f"--filename={REPOSITORY / 'crds'}")
    until_refused_by_0_1_0(fleet.training)
    until_refused_by_0_1_0(fleet.completed)
    today = next(value for value in values if value.startswith("images.operator="))
    helm.upgrade(CHART, today, "web.enabled=true", "replicas=2", flags=["--reset-then-reuse-values"])
    return before


@pytest.fixture(scope="module")
def rolled_back(helm: Helm, fleet: Fleet, upgraded: Before, runs: dict[str, ExampleRun]) -> tuple[Before, Before]:
    """The runs that train, the second of them in pods that today's operator made. A third run ended under it."""
    runs["stopped"].start(steps=3, stop=True)
    runs["stopped"].until_phase("Stopped")
    fleet.suspended.change(suspend=False)
    fleet.suspended.until_phase("Running")
    before = Before.of(upgraded.run), Before.of(fleet.suspended)
    helm.run("rollback", RELEASE, "--wait", "--timeout=120s")
    for each in before:
        until_reported_by_0_1_0(each.run)
    return before


def test_helm_test_of_the_earlier_release_passes(helm: Helm, fleet: Fleet) -> None:
    assert "Succeeded" in helm.run("test", RELEASE)
    assert fleet.training.kstatus() == "Current"


def test_run_continues_in_its_pods_through_the_upgrade(upgraded: Before) -> None:
    upgraded.run.until("reported by today's operator", lambda body: "/5000." in body["status"]["message"])
    upgraded.check_that_it_continues()


def test_suspended_run_of_the_earlier_release_is_resumed(upgraded: Before, fleet: Fleet) -> None:
    """Its pods share one token, which 0.1.0 made."""
    step = fleet.suspended.step()
    fleet.suspended.change(suspend=False)
    resumed = fleet.suspended.until_trained(step + 2)
    assert resumed["status"]["checkpoint"]["step"] >= step


@pytest.mark.usefixtures("upgraded")
def test_completed_run_reads_the_same_after_the_upgrade(fleet: Fleet) -> None:
    check_that_it_stays_completed(fleet.completed)


def check_that_it_stays_completed(run: ExampleRun) -> None:
    status = run.body()["status"]
    assert (status["phase"], status["progress"]["step"], status["results"]["step"]) == ("Completed", 3, 3)
    assert "completionTime" in status
    assert run.kstatus() == "Current", status


class PageClient:
    """Requests to the page's address with a bearer token, or without one."""

    def __init__(self, address: str, token: str = "") -> None:
        self._address, self._headers = address, {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, path: str) -> tuple[int, Any]:
        request = urllib.request.Request(f"{self._address}{path}", headers=self._headers)  # noqa: S310 - http, ours
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def until_it_has(self, part: str, path: str) -> Json:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (answer := self.ask(path))[1].get("parts", {}).get(part):
            assert time.monotonic() < deadline, f"no {part} in {path}: {answer}"
            time.sleep(0.3)
        return dict(answer[1]["parts"])


@pytest.mark.usefixtures("upgraded")
def test_page_in_the_cluster_shows_what_the_token_may_read(
    kubectl: Kubectl, release_namespace: str, fleet: Fleet
) -> None:
    here = kubectl.in_namespace(release_namespace)
    for name in ("viewer", "unprivileged"):
        here.run("create", "serviceaccount", name)
    here.run("create", "rolebinding", "viewer", "--clusterrole=view", f"--serviceaccount={release_namespace}:viewer")
    tokens = [here.run("create", "token", name).strip() for name in ("viewer", "unprivileged")]
    runs = f"/api/runs?namespaces={release_namespace}"
    path = f"/api/runs/{release_namespace}/{fleet.training.name}"
    with forwarded(here, "service/clotho-web", 80) as address:
        viewer, unprivileged = (PageClient(address, token) for token in tokens)
        page = viewer.until_it_has("samples", path)  # kept in a ConfigMap, as the curves are
        assert page["run"]["phase"] == "Running"
        assert page["unread"] == []
        curve = page["series"]
        assert len(curve["steps"]) == len(curve["figures"]["rewardMean"]) > 0
        listed = viewer.ask(runs)[1]["parts"]
        assert {listed[f"{release_namespace}/{run.name}"]["phase"] for run in (fleet.training, fleet.completed)} == {
            "Running",
            "Completed",
        }
        assert unprivileged.ask(runs)[1]["parts"].keys() == {"scope"}
        assert unprivileged.ask(path)[1]["parts"].keys() == {"missing"}
        assert unprivileged.ask(f"{path}/logs")[0] == 403
        assert PageClient(address).ask(runs)[0] == 401
        assert PageClient(address, "made-up").ask(runs)[0] == 401


def test_runs_continue_in_their_pods_through_the_rollback(rolled_back: tuple[Before, Before]) -> None:
    for each in rolled_back:
        each.check_that_it_continues()


@pytest.mark.usefixtures("rolled_back")
def test_finished_runs_are_not_started_again_by_the_earlier_release(fleet: Fleet, runs: dict[str, ExampleRun]) -> None:
    check_that_it_stays_completed(fleet.completed)
    unread = runs["stopped"]  # 0.1.0 forgets its status, and finds `stop` in its spec
    after = unread.until("read by 0.1.0", lambda body: "Finished" not in condition_types(body))
    assert (after["status"]["phase"], unread.pods()) == ("Stopped", {})


def condition_types(body: Json) -> set[str]:
    return {condition["type"] for condition in body["status"]["conditions"]}
