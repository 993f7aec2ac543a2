"""A container's termination message, `{reason, message, step}`, which the operator classifies and shows in status."""

import os
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from clotho_contract import untrusted
from clotho_contract.exports import ExportOutcome
from clotho_contract.names import TERMINATION_MESSAGE_PATH, TERMINATION_MESSAGE_VARIABLE
from clotho_contract.progress import Count, Progress, bounded

Reason = Literal[
    "Finished",  # the work is done; for a trainer: last step and final checkpoint
    "Stopped",  # asked to by a signal, state saved
    "InvalidConfig",  # permanent: trying again cannot help
    "ModelUnreadable",
    "ModelTooLarge",  # permanent: memory ran out while the model was loaded
    "CheckpointsDamaged",  # permanent: none can be read, and the config does not allow to start over
    "VolumeFull",  # permanent: a checkpoint does not fit, and the steps since the last one would only be repeated
    "OutOfMemory",
    "NonFiniteLoss",
    "Unauthorized",
    "DependencyUnavailable",
    "EnvironmentFailed",
    "InternalError",
]
PERMANENT: Final[frozenset[Reason]] = frozenset({"InvalidConfig", "ModelTooLarge", "CheckpointsDamaged", "VolumeFull"})
LIMIT = 4096  # what the kubelet keeps


class Sample(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One attempt of a test, shortened for display."""

    prompt: str = ""
    answer: str = ""
    score: float = 0.0


class Trial(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How a model did in a test of an environment, as far as it got."""

    steps_tested: Count = 0  # groups
    completions: Count = 0
    correct: Count = 0  # completions with a score above 0
    steps_with_correct: Count = 0
    samples: tuple[Sample, ...] = ()
    scores: tuple[tuple[float, ...], ...] = ()  # of the first groups, group by group
    output: str = ""  # the end of what was printed


class Termination(Struct, frozen=True, kw_only=True, omit_defaults=True):
    reason: Reason
    message: str
    step: Count | None = None
    progress: Progress | None = None  # a trainer's final figures: it can no longer be probed for them
    export: ExportOutcome | None = None  # what an export wrote
    trial: Trial | None = None  # what a test of an environment found


def encode(termination: Termination) -> bytes:
    body = msgspec.json.encode(termination)
    if len(body) <= LIMIT:
        return body
    if termination.progress is not None:
        return encode(msgspec.structs.replace(termination, progress=None))
    if termination.export is not None and termination.export.files:
        summary = msgspec.structs.replace(termination.export, files=())
        return encode(msgspec.structs.replace(termination, export=summary))
    if termination.trial is not None and (termination.trial.output or termination.trial.samples):
        figures = msgspec.structs.replace(termination.trial, output="", samples=())
        return encode(msgspec.structs.replace(termination, trial=figures))
    if termination.trial is not None and termination.trial.scores:
        figures = msgspec.structs.replace(termination.trial, scores=())
        return encode(msgspec.structs.replace(termination, trial=figures))
    excess = len(body) - LIMIT
    shorter = termination.message.encode()[: -(excess + 3)].decode(errors="ignore") + "…"
    return msgspec.json.encode(msgspec.structs.replace(termination, message=shorter))


def decode(text: str) -> Termination | None:
    """None for anything that is not ours: foreign images write what they like."""
    try:
        found = untrusted.decode(text, Termination)
    except msgspec.MsgspecError:
        return None
    return msgspec.structs.replace(found, progress=bounded(found.progress)) if found.progress else found


def write(termination: Termination) -> None:
    """Best effort: a laptop has no /dev/termination-log, and the exit must not fail over it."""
    path = Path(os.environ.get(TERMINATION_MESSAGE_VARIABLE, str(TERMINATION_MESSAGE_PATH)))
    try:
        path.write_bytes(encode(termination))
    except OSError:
        return
