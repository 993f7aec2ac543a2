"""docs/metrics.md lists the metrics of every component."""

from clotho_dev.metrics_page import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: make operator-docs"


def test_every_component_has_metrics_there() -> None:
    text = page()
    for name in (
        "clotho_run_step",
        "clotho_api_queue_groups",
        "clotho_trainer_step",
        "clotho_environment_rollouts_total",
    ):
        assert f"| `{name}` |" in text
