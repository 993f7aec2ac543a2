"""What the trainer answers on `/progress`; the operator copies it into the run's status."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from clotho_contract import untrusted

State = Literal["loading", "waiting", "compiling", "training", "saving", "finished"]
LARGEST_FIGURE: Final = 1e15
LONGEST_TEXT: Final = 4096
MOST_SUMMARIES: Final = 16  # figures of evaluations
LONGEST_NAME: Final = 128
MOST_MISSING: Final = 64  # ranks that are reported at once
LARGEST_COUNT: Final = 2**53  # what JSON and Prometheus can count exactly
Count = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]


class HistorySample(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    step: Count
    reward_mean: float | None = None
    loss: float | None = None
    percent_correct: float | None = None


class CheckpointInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    step: Count
    path: str


class EvaluationSummary(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One figure of an environment's evaluations: the newest, and the best so far, which is the highest."""

    environment: str
    figure: str
    step: Count
    value: float
    best_step: Count
    best: float


class CopyInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How the copies of checkpoints in a bucket are doing."""

    location: str  # s3://bucket/folder
    step: Count = 0  # of the newest that is there
    problem: str = ""  # why a newer one is not


class Progress(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`finished` is reported only after the last step and its final checkpoint: it alone makes a run Completed."""

    state: str  # a State; a reader survives those of a newer trainer
    step: Count
    total_steps: Count
    configured_steps: Count = 0  # training.steps; total_steps is smaller where the data ends before
    policy_version: Count = 0
    reward_mean: float | None = None
    loss: float | None = None
    percent_correct: float | None = None
    tokens_per_second: float | None = None
    seconds_per_step: float | None = None
    waiting_share: float | None = None  # of the last step, spent waiting for data: 0 to 1
    occupancy: float | None = None  # of the engine's rows, the mean while the trainer waited: 0 to 1
    last_step_time: str | None = None  # RFC 3339
    registered: bool = False
    serving: bool = False
    missing_ranks: Annotated[tuple[Count, ...], Meta(max_length=MOST_MISSING)] = ()  # that rank 0 waits for in vain
    checkpoint: CheckpointInfo | None = None
    best_checkpoint: CheckpointInfo | None = None  # by training.checkpoint.keepBest
    copies: CopyInfo | None = None
    history: tuple[HistorySample, ...] = ()
    wandb_url: str | None = None
    engine: str = ""  # that serves the policy
    evaluations: Annotated[tuple[EvaluationSummary, ...], Meta(max_length=MOST_SUMMARIES)] = ()


def encode(progress: Progress) -> bytes:
    return msgspec.json.encode(progress)


def bounded(progress: Progress) -> Progress:
    """Untrusted code may have written it: figures and texts that no trainer can mean are left out."""
    saved, best, url = progress.checkpoint, progress.best_checkpoint, progress.wandb_url
    copies = progress.copies
    return msgspec.structs.replace(
        progress,
        reward_mean=_within(progress.reward_mean, -LARGEST_FIGURE),
        loss=_within(progress.loss, -LARGEST_FIGURE),
        percent_correct=_within(progress.percent_correct),
        tokens_per_second=_within(progress.tokens_per_second),
        seconds_per_step=_within(progress.seconds_per_step),
        checkpoint=saved if saved and len(saved.path) <= LONGEST_TEXT else None,
        best_checkpoint=best if best and len(best.path) <= LONGEST_TEXT else None,
        copies=copies if copies and len(copies.location) + len(copies.problem) <= LONGEST_TEXT else None,
        wandb_url=url if url and len(url) <= LONGEST_TEXT else None,
        engine=progress.engine if len(progress.engine) <= LONGEST_NAME else "",
        waiting_share=_within(progress.waiting_share, most=1.0),
        occupancy=_within(progress.occupancy, most=1.0),
        evaluations=tuple(
            each
            for each in progress.evaluations
            if max(len(each.environment), len(each.figure)) <= LONGEST_NAME
            and max(abs(each.value), abs(each.best)) <= LARGEST_FIGURE
        ),
        history=tuple(
            HistorySample(
                step=sample.step,
                reward_mean=_within(sample.reward_mean, -LARGEST_FIGURE),
                loss=_within(sample.loss, -LARGEST_FIGURE),
                percent_correct=_within(sample.percent_correct),
            )
            for sample in progress.history
        ),
    )


def _within(figure: float | None, least: float = 0.0, most: float = LARGEST_FIGURE) -> float | None:
    return figure if figure is not None and least <= figure <= most else None


def decode(body: bytes) -> Progress:
    return bounded(untrusted.decode(body, Progress))
