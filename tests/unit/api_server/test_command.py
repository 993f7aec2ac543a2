"""Settings and tokens from the process environment."""

from pathlib import Path

import pytest

from clotho_api_server.command import StartError, access_of, parse_options, settings_of
from clotho_api_server.refusals import ForbiddenError
from clotho_contract import config, names

ROLES = ("CLOTHO_ENVIRONMENT_TOKEN", "CLOTHO_TRAINER_TOKEN", "CLOTHO_OPERATOR_TOKEN")


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in names.TOKEN_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_an_empty_config_variable_is_treated_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOTHO_CONFIG", "")
    assert settings_of(parse_options([])).max_body_bytes == config.ApiServerConfig().max_body_bytes
    with pytest.raises(config.ConfigError, match=str(names.CONFIG_PATH)):
        config.load()


def test_a_config_that_is_named_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOTHO_CONFIG", str(tmp_path / "absent.yaml"))
    with pytest.raises(config.ConfigError, match=r"absent\.yaml"):
        settings_of(parse_options([]))


def test_one_token_serves_every_role_but_the_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOTHO_TOKEN", "shared")
    access = access_of(parse_options([]))
    for route in ("/scored_data", "/lease", "/status"):
        access.check(route, "Bearer shared")
    with pytest.raises(ForbiddenError):
        access.check("/reset_data", "Bearer shared")


def test_each_role_has_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ROLES:
        monkeypatch.setenv(variable, variable.lower())
    access = access_of(parse_options([]))
    for route, variable in zip(("/scored_data", "/lease", "/status"), ROLES, strict=True):
        access.check(route, f"Bearer {variable.lower()}")
    with pytest.raises(ForbiddenError):
        access.check("/lease", "Bearer clotho_environment_token")


def test_a_role_without_a_token_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOTHO_TRAINER_TOKEN", "t")
    with pytest.raises(StartError, match=r"\$CLOTHO_ENVIRONMENT_TOKEN and \$CLOTHO_OPERATOR_TOKEN not set"):
        access_of(parse_options([]))


def test_origins_come_from_the_option_or_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options([]).origins == ()
    monkeypatch.setenv("CLOTHO_CORS_ORIGINS", "https://a, https://b,")
    assert parse_options([]).origins == ("https://a", "https://b")
    assert parse_options(["--cors-origins", "*"]).origins == ("*",)
