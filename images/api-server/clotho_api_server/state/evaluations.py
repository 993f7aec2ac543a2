"""The newest evaluations, kept as one fact of the run: bounded, and small beside the groups."""

from typing import Final

import msgspec

from clotho_api_server.state.ledger import Ledger
from clotho_contract.history import Evaluation, evaluations_of

_FACT: Final = "evaluations"


def known(ledger: Ledger) -> tuple[Evaluation, ...]:
    body = ledger.fact(_FACT)
    return msgspec.json.decode(body, type=tuple[Evaluation, ...]) if body else ()


def add(ledger: Ledger, evaluation: Evaluation) -> None:
    ledger.note(_FACT, msgspec.json.encode(evaluations_of((*known(ledger), evaluation))))
