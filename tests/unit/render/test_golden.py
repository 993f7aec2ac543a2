"""Golden manifests: what a run becomes. In tests/, `python -m unit.render.regolden` renews golden/."""

from pathlib import Path

import pytest
import yaml

from unit.render.recorded import RECORDED

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("case", RECORDED)
def test_manifests_are_as_recorded(case: str) -> None:
    recorded = list(yaml.safe_load_all((GOLDEN / f"{case}.yaml").read_text()))
    assert RECORDED[case]() == recorded


def test_every_record_has_its_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(RECORDED)
