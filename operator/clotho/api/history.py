"""The ConfigMaps that outlive a run's pods: their names, their keys, and what is in them. No I/O.

`<run>-history` holds curves, samples and evaluations, `<run>-logs` the last lines of each container; `<run>` is the
name that all objects of a run start with. Both belong to the run and are deleted with it.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from clotho_contract import untrusted
from clotho_contract.history import Evaluation, History, SampleGroup, Series, bounded

SERIES_KEY: Final = "series.json"
SAMPLES_KEY: Final = "samples.json"
EVALUATIONS_KEY: Final = "evaluations.json"
MOST_LOG_BYTES: Final = 256 * 1024  # of all containers of a run
MOST_LINES: Final = 200  # of a container
MOST_CONTAINER_BYTES: Final = 32 * 1024

Data = Mapping[str, str]
T = TypeVar("T")


class KeptLog(Struct, frozen=True, kw_only=True, order=True):
    """The end of one container's log. `attempt` is the run's: how many times the trainer had been started."""

    attempt: int
    restarts: int  # of the component, before this pod
    title: str  # trainer, trainer-1, api-server, inference-0, or an environment's name and index
    container: str
    text: str = ""

    @property
    def key(self) -> str:
        return f"{self.attempt}.{self.restarts}.{self.title}.{self.container}"


def history_data(history: History) -> dict[str, str]:
    return {
        SERIES_KEY: msgspec.json.encode(history.series).decode(),
        SAMPLES_KEY: msgspec.json.encode(history.samples).decode(),
        EVALUATIONS_KEY: msgspec.json.encode(history.evaluations).decode(),
    }


def read_history(data: Data) -> History:
    """What cannot be decoded counts as empty: a ConfigMap can be edited by hand."""
    return bounded(
        History(
            series=_read(data, SERIES_KEY, Series) or Series(),
            samples=_read(data, SAMPLES_KEY, tuple[SampleGroup, ...]) or (),
            evaluations=_read(data, EVALUATIONS_KEY, tuple[Evaluation, ...]) or (),
        )
    )


def _read(data: Data, key: str, kind: type[T]) -> T | None:
    try:
        return untrusted.decode(data.get(key, ""), kind)
    except msgspec.MsgspecError:
        return None


def log_data(logs: tuple[KeptLog, ...]) -> dict[str, str]:
    """The newest attempts that fit into MOST_LOG_BYTES."""
    kept: dict[str, str] = {}
    room = MOST_LOG_BYTES
    for each in sorted(logs, key=lambda log: (log.attempt, log.restarts), reverse=True):
        room -= len(each.key) + len(each.text.encode())
        if room < 0:
            break
        kept[each.key] = each.text
    return kept


def read_logs(data: Data) -> tuple[KeptLog, ...]:
    """Oldest attempt first, then by component."""
    return tuple(sorted(log for key, text in data.items() if (log := _log(key, text)) is not None))


def _log(key: str, text: str) -> KeptLog | None:
    match key.split("."):
        case [attempt, restarts, title, container] if attempt.isdecimal() and restarts.isdecimal():
            return KeptLog(attempt=int(attempt), restarts=int(restarts), title=title, container=container, text=text)
    return None


def end_of_log(text: str) -> str:
    """The last MOST_LINES, in at most MOST_CONTAINER_BYTES; a line that is cut starts with an ellipsis."""
    end = "\n".join(text.splitlines()[-MOST_LINES:])
    body = end.encode()
    return end if len(body) <= MOST_CONTAINER_BYTES else "…" + body[3 - MOST_CONTAINER_BYTES :].decode(errors="ignore")
