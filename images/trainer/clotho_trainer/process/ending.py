"""The end of the process: its termination message, then an exit that waits for no thread."""

import os
import sys
from typing import NoReturn

from clotho_contract import termination
from clotho_contract.termination import Termination
from clotho_trainer import failures


def leave(end: Termination) -> NoReturn:
    """A thread deep in a library, or in a collective whose other end is gone, must not keep the pod alive."""
    termination.write(end)
    print(f"{end.reason}: {end.message}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failures.exit_code(end))
