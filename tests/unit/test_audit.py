"""`make audit` reports a known vulnerability, and never as passed what it could not look up."""

from typing import Any

import pytest

from audit.run import judged

FLAW = {"id": "PYSEC-2026-1", "fix_versions": ["1.1"]}
SOUND: dict[str, Any] = {"name": "sound", "version": "2.0", "vulns": []}
FLAWED: dict[str, Any] = {"name": "flawed", "version": "1.0", "vulns": [FLAW]}
UNKNOWN: dict[str, Any] = {"name": "unknown", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "outcome", "detail"),
    [
        ([SOUND, SOUND | {"name": "another"}], "passed", "2 packages of 2 images"),
        ([SOUND, FLAWED], "FAILED", "flawed 1.0: PYSEC-2026-1, mended in 1.1"),
        ([UNKNOWN, FLAWED], "FAILED", "flawed 1.0: PYSEC-2026-1, mended in 1.1"),
        ([SOUND, UNKNOWN], "NOT RUN", "the index has no advisories for 1 of 2 packages: unknown"),
    ],
)
def test_dependencies_are_judged_by_what_is_known_of_them(
    packages: list[dict[str, Any]], outcome: str, detail: str
) -> None:
    found = judged([{"dependencies": packages}, {"dependencies": packages}])
    assert (found.outcome, found.detail) == (outcome, detail)
