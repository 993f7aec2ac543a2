"""How many steps the run has. The operator sends a new number over HTTP; the mounted file follows a minute later."""

import logging
from collections.abc import Callable

from clotho_contract.config import ConfigError, RunConfig

log = logging.getLogger(__name__)


class StepTarget:
    """The latest change counts, from either side; a file that has not changed is no change."""

    def __init__(self, steps: int, read: Callable[[], RunConfig]) -> None:
        self._steps = self._in_file = steps
        self._read = read

    def set(self, steps: int) -> None:
        self._steps = steps

    def __call__(self) -> int:
        try:
            in_file = self._read().training.steps
        except ConfigError as error:
            log.warning("the changed config is ignored: %s", error)
            return self._steps
        if in_file != self._in_file:
            self._in_file = self._steps = in_file
        return self._steps
