"""Settings: flags over variables over defaults, and every mistake named with its place and what is allowed."""

from pathlib import Path

import pytest

from clotho.manager import settings
from clotho.manager.settings import Settings, SettingsError

DOCS = Path(__file__).parents[3] / "docs" / "operator-settings.md"


def test_defaults_are_valid_without_flags_and_variables() -> None:
    assert settings.parse([], {}) == Settings()


def test_flags_win_over_variables() -> None:
    parsed = settings.parse(
        ["--probe-concurrency", "7", "--lease-enabled=false"],
        {"CLOTHO_PROBE_CONCURRENCY": "9", "CLOTHO_WATCH_NAMESPACES": "team-a, team-b", "CLOTHO_LEASE_ENABLED": "yes"},
    )
    assert (parsed.probe.concurrency, parsed.watch.namespaces) == (7, ("team-a", "team-b"))
    assert parsed.lease.enabled is False


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--probe-concurrency", "many"], "--probe-concurrency='many': Expected `int`"),
        (["--reconcile-workers", "0"], "--reconcile-workers='0': Expected `int` >= 1"),
        (["--lease-enabled", "maybe"], "--lease-enabled='maybe': Expected `bool`"),
        (["--log-level", "loud"], "debug, info, warning or error"),
        (["--server-port", "70000"], "<= 65535"),
        (["--lease-renew-within-seconds", "29"], "must be at least --api-timeout-seconds (10)"),
        (["--lease-renew-every-seconds", "15"], "must be at most half"),
        (["--api-kubeconfig", "/nowhere"], "/nowhere: no such file"),
    ],
)
def test_invalid_setting_is_named(arguments: list[str], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint.replace("(", r"\(").replace(")", r"\)")):
        settings.parse(arguments, {})


def test_help_describes_every_flag_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings.parse(["--help"], {})
    text = capsys.readouterr().out
    for _, _, knobs in settings.groups():
        for knob in knobs:
            assert knob.flag in text
            assert knob.variable in text
            assert knob.description, f"{knob.flag} is not described"


def test_the_page_is_up_to_date() -> None:
    assert DOCS.read_text() == settings.to_markdown(), "run: python -m clotho.manager.docs"
