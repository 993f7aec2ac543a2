"""Heartbeats."""

from clotho_api_server.state.presence import Presence
from clotho_api_server.state.shares import Environment
from clotho_contract.api_protocol import RegisterEnv

ASKED = RegisterEnv(100, "e", 1.0, 4)
ENVIRONMENTS = {id: Environment(id, f"e_{id}", ASKED, connected=id != 2) for id in range(3)}


def test_silence_makes_an_environment_overdue() -> None:
    presence = Presence(timeout=10, now=0)
    presence.record_heartbeat(1, now=8)
    assert list(presence.overdue(ENVIRONMENTS, now=9)) == []
    assert list(presence.overdue(ENVIRONMENTS, now=11)) == [0]
    assert list(presence.overdue(ENVIRONMENTS, now=19)) == [0, 1]


def test_silence_is_measured_from_the_last_heartbeat() -> None:
    presence = Presence(timeout=10, now=0)
    presence.record_heartbeat(1, now=8)
    assert presence.silence(1, now=9) == 1
    assert presence.silence(0, now=9) == 9
