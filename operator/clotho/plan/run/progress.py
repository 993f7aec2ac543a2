"""The trainer's report, as it appears in status."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from clotho.api.status import Results, RunProgress
from clotho.plan.run.situation import Situation
from clotho.render.objects import trainer_claim_name
from clotho_contract.progress import CheckpointInfo, EvaluationSummary, HistorySample, Progress

HISTORY_LIMIT: Final = 10
LONGEST_ETA: Final = 10 * 365 * 86400  # seconds; more is a trainer's mistake


def run_progress(situation: Situation) -> RunProgress | None:
    """The present trainer's step as soon as it has read its checkpoint; until then, the last one known."""
    before, report = situation.run.status.progress, situation.progress
    reached = _step(situation)
    if before is None and report is None and reached == 0:
        return None
    total = situation.total_steps
    kept = before or RunProgress(step=0, total_steps=total, percent=0)
    if report is None:
        return _at(kept, reached, total)
    return RunProgress(
        step=reached,
        total_steps=total,
        percent=_percent(reached, total),
        steps=f"{reached}/{total}",
        reward_mean=_newest(report.reward_mean, kept.reward_mean),
        loss=_newest(report.loss, kept.loss),
        percent_correct=_newest(report.percent_correct, kept.percent_correct),
        tokens_per_second=_rounded(report.tokens_per_second),
        eta_seconds=_eta(report, total),
        last_step_time=_last_step_time(situation, before, report),
        engine=report.engine or kept.engine,
    )


def _step(situation: Situation) -> int:
    """Never below the checkpoint's: the last report of a trainer may be older than what it saved at its end."""
    before, report, ended = situation.run.status.progress, situation.progress, situation.termination
    known = report.step if report is not None and situation.has_read_checkpoint else before.step if before else 0
    saved = checkpoint(situation)
    return max(known, (ended.step or 0) if ended else 0, saved.step if saved else 0)


def _at(kept: RunProgress, step: int, total: int) -> RunProgress:
    """Known numbers of an earlier answer, moved to the step that is known now."""
    return RunProgress(
        step=step,
        total_steps=total,
        percent=_percent(step, total),
        steps=f"{step}/{total}",
        reward_mean=kept.reward_mean,
        loss=kept.loss,
        percent_correct=kept.percent_correct,
        last_step_time=kept.last_step_time,
        engine=kept.engine,
    )


def _percent(step: int, total: int) -> int:
    return min(100, step * 100 // total)


def _rounded(number: float | None) -> float | None:
    """Four significant digits are plenty; what is not a number has no place in JSON."""
    return float(f"{number:.4g}") if number is not None and math.isfinite(number) else None


def _newest(report: float | None, before: float | None) -> float | None:
    """A trainer that has just been restarted has no figures yet."""
    return before if report is None else _rounded(report)


def _eta(report: Progress, total: int) -> int | None:
    seconds = report.seconds_per_step
    if not seconds or seconds < 0 or not math.isfinite(seconds):
        return None
    return round(min(max(0, total - report.step) * seconds, LONGEST_ETA))


def reported_step_time(report: Progress) -> datetime | None:
    """When the trainer made its last step, in UTC: without a zone it is taken as UTC, and None when it is no time."""
    try:
        time = datetime.fromisoformat(report.last_step_time or "")
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _last_step_time(situation: Situation, before: RunProgress | None, report: Progress) -> datetime | None:
    time = reported_step_time(report)
    if time is not None:
        return min(time.replace(microsecond=0), situation.moment)
    if before is not None and before.step >= report.step:
        return before.last_step_time
    return situation.moment if report.step else None


def history(situation: Situation) -> tuple[HistorySample, ...]:
    """At most ten samples spread over the run: the earliest, the latest, and those nearest to even distances."""
    stored, report = situation.run.status.history, situation.progress
    if report is None:
        return stored
    samples = {sample.step: sample for sample in (*stored, *map(_sample, report.history))}
    if situation.has_read_checkpoint:  # a trainer that resumed from an earlier step makes the later ones again
        samples = {step: sample for step, sample in samples.items() if step <= report.step}
    if report.step and report.step >= max(samples, default=0):
        samples[report.step] = _sample(report)
    return spread(samples.values())


def _sample(reported: Progress | HistorySample) -> HistorySample:
    return HistorySample(
        step=reported.step,
        reward_mean=_rounded(reported.reward_mean),
        loss=_rounded(reported.loss),
        percent_correct=_rounded(reported.percent_correct),
    )


def spread(samples: Iterable[HistorySample]) -> tuple[HistorySample, ...]:
    ordered = sorted(samples, key=lambda sample: sample.step)
    if len(ordered) <= HISTORY_LIMIT:
        return tuple(ordered)
    first, last = ordered[0].step, ordered[-1].step
    wanted = [first + (last - first) * i / (HISTORY_LIMIT - 1) for i in range(HISTORY_LIMIT)]
    chosen = {min(ordered, key=lambda sample: (abs(sample.step - step), sample.step)).step for step in wanted}
    return tuple(sample for sample in ordered if sample.step in chosen)


def checkpoint(situation: Situation) -> CheckpointInfo | None:
    """The present trainer's; else the newest that any trainer has reported, also one whose pod is gone."""
    report, probe = situation.progress, situation.observed.probes.trainer
    if report is not None and report.checkpoint is not None:
        return report.checkpoint
    heard = probe.answer.checkpoint if probe is not None and probe.answer is not None else None
    known = [each for each in (situation.run.status.checkpoint, heard) if each is not None]
    if report is not None and situation.has_read_checkpoint:
        known = [each for each in known if each.step <= report.step]
    return max(known, key=lambda each: each.step, default=None)


def evaluations(situation: Situation) -> tuple[EvaluationSummary, ...]:
    """A trainer that has just been started has not asked for them yet."""
    report = situation.progress
    return (report.evaluations if report is not None else ()) or situation.run.status.evaluations


def best_checkpoint(situation: Situation) -> CheckpointInfo | None:
    report = situation.progress
    return (report.best_checkpoint if report is not None else None) or situation.run.status.best_checkpoint


def wandb_url(situation: Situation) -> str:
    report = situation.progress
    return report.wandb_url if report is not None and report.wandb_url else situation.run.status.wandb_url


def results(situation: Situation, progress: RunProgress | None, newest: CheckpointInfo | None) -> Results:
    return Results(
        step=progress.step if progress else 0,
        reward_mean=progress.reward_mean if progress else None,
        loss=progress.loss if progress else None,
        percent_correct=progress.percent_correct if progress else None,
        claim=trainer_claim_name(situation.run) if newest else "",
        path=newest.path if newest and not situation.run.spec.storage.ephemeral else "",
        wandb_url=wandb_url(situation),
    )
