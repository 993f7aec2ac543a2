"""The ranks of one pod as processes that torchrun starts and ends; where the ranks of all pods meet is not its part."""

import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from clotho_contract import termination
from clotho_contract.names import TERMINATION_MESSAGE_VARIABLE
from clotho_contract.termination import Termination
from clotho_trainer.failures import exit_code

log = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 3600  # the pod's grace period decides, which has to be enough for the last checkpoint


def launch(count: int, arguments: Sequence[str]) -> Termination:
    """Until all of them have ended; returns how, with the cause first."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    pod = os.environ.get(TERMINATION_MESSAGE_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        os.environ[TERMINATION_MESSAGE_VARIABLE] = str(Path(folder, "termination"))
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,  # the operator restarts the ranks of all pods together
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "clotho_trainer", *arguments)
        except (ChildFailedError, SignalException) as error:
            log.info("the ranks of this pod have ended: %s", str(error).strip().splitlines()[0])
        endings = [_read(Path(folder, f"termination-{rank}")) for rank in range(count)]
    if pod is None:
        del os.environ[TERMINATION_MESSAGE_VARIABLE]
    else:
        os.environ[TERMINATION_MESSAGE_VARIABLE] = pod
    return verdict(endings)


def verdict(endings: Sequence[Termination | None]) -> Termination:
    """A rank that failed by itself explains more than those that miss it; progress is the first rank's."""
    known = [each for each in endings if each is not None]
    if not known:
        return Termination(reason="InternalError", message="the ranks of this pod ended without a message")
    failed = [each for each in known if exit_code(each)]
    causes = [each for each in failed if each.reason != "DependencyUnavailable"]
    return structs.replace((causes or failed or known)[0], progress=known[0].progress)


def _read(path: Path) -> Termination | None:
    return termination.decode(path.read_text()) if path.exists() else None
