"""One API server, one recorded reference, and a summary of all campaigns at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from clotho_dev.cluster import binaries
from clotho_dev.cluster.control_plane import PROGRAMS, ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from faults import campaign
from faults.campaign import Case, Recording, Report
from faults.forked_operators import ForkedOperators
from faults.lab import Lab

ROOT = Path(__file__).parents[2]
REPORTS: list[Report] = []
RunCampaign = Callable[[str, Sequence[Case], Sequence[Case]], Awaitable[None]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every case of each campaign, not only its sample")
    parser.addoption("--case", default="", help="only the cases with this text in their name")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not REPORTS:
        return
    terminalreporter.section("fault campaigns")
    for report in REPORTS:
        terminalreporter.write_line(str(report))
    cases, failed = sum(len(r.outcomes) for r in REPORTS), sum(len(r.failed) for r in REPORTS)
    terminalreporter.write_line(f"altogether: {cases} cases, {failed} failed")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), binaries.find(PROGRAMS)) as running:
        kubectl = Kubectl(running.programs["kubectl"], running.kubeconfig)
        kubectl.run("apply", "--server-side", f"--filename={ROOT / 'crds'}")
        kubectl.run("wait", "--for=condition=Established", "crd", "--all")
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lab(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with (
        ForkedOperators() as operators,
        Lab(control_plane, operators, tmp_path_factory.mktemp("cases")) as running,
    ):
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reference(lab: Lab) -> Recording:
    return await campaign.record(lab)


@pytest.fixture
def run_campaign(lab: Lab, request: pytest.FixtureRequest) -> RunCampaign:
    """Runs the sample, or every case with `--whole`; fails with the report."""

    async def run(name: str, cases: Sequence[Case], sample: Sequence[Case]) -> None:
        wanted = request.config.getoption("--case")
        chosen = cases if wanted or request.config.getoption("--whole") else sample
        report = await campaign.run_all(name, [case for case in chosen if wanted in case.name], lab)
        REPORTS.append(report)
        if report.failed:
            pytest.fail(str(report), pytrace=False)

    return run
