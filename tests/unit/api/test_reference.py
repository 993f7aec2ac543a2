"""The page in docs/ says what the CRD says."""

from pathlib import Path

from clotho.api.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def test_reference_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run `make crds`"


def test_reference_lists_type_default_and_description() -> None:
    page = reference()
    assert "| **`spec.training.steps`** | integer |" in page
    assert "`spec.model.dtype` | `auto` \\| `bfloat16`" in page
    assert "`spec.environments[].replicas` | integer | `1` | How many pods produce trajectories." in page
    assert "`status.progress.rewardMean`" in page
