"""A GPU run on other versions than those that are shipped names every difference."""

import pytest

from rig import locked_versions

SHIPPED = {"torch": "2.15.0", "triton": "3.9.0"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"torch": "2.15.0", "triton": "3.9.0"}, []),
        ({"torch": "2.15.0+cu130", "triton": "3.9.0"}, []),
        ({"torch": "2.11.0+cu130", "triton": "3.9.0"}, ["torch: 2.11.0+cu130, locked 2.15.0"]),
        (
            {"torch": "2.15.1", "triton": None},
            ["torch: 2.15.1, locked 2.15.0", "triton: not installed, locked 3.9.0"],
        ),
        ({}, ["torch: not installed, locked 2.15.0", "triton: not installed, locked 3.9.0"]),
    ],
)
def test_versions_other_than_the_locked_ones_are_named(found: dict[str, str | None], expected: list[str]) -> None:
    assert locked_versions.differences(SHIPPED, found) == expected


def test_the_lock_has_every_package_that_a_gpu_run_depends_on() -> None:
    assert set(locked_versions.locked()) == set(locked_versions.PACKAGES) == set(locked_versions.running())


def test_this_process_runs_the_locked_trl() -> None:
    assert locked_versions.running()["trl"] == locked_versions.locked()["trl"]
