"""Completed: the trainer reports the last step done and its final checkpoint written. Never just exit code 0."""

from clotho.plan.run.situation import Decision, Situation
from clotho.plan.wording import full_stop


def is_complete(situation: Situation) -> bool:
    wanted = situation.total_steps
    progress = situation.progress
    if progress is not None and progress.state == "finished" and progress.step >= wanted:
        return True
    reported = situation.termination
    return reported is not None and reported.reason == "Finished" and (reported.step or 0) >= wanted


def has_trained_enough(situation: Situation) -> bool:
    """The last step is done, the final checkpoint perhaps not: environments may leave."""
    progress = situation.progress
    return progress is not None and progress.step >= situation.total_steps


def finishing_message(situation: Situation) -> str:
    """A copy that cannot be made delays the end, for minutes at most."""
    progress = situation.progress
    if progress is not None and progress.copies is not None and progress.copies.problem:
        return f"The last step is done; waiting for the copy of its checkpoint: {full_stop(progress.copies.problem)}"
    return "The last step is done; waiting for the final checkpoint."


def complete(situation: Situation) -> Decision:
    is_kept = not situation.run.spec.storage.ephemeral
    checkpoint = "the final checkpoint is written" if is_kept else "nothing is kept, because storage.ephemeral is true"
    return Decision(
        phase="Completed",
        reason="Completed",
        message=f"Completed {_all(situation.total_steps)}; {checkpoint}.",
        components=situation.components,
    )


def _all(steps: int) -> str:
    return "its only step" if steps == 1 else f"all {steps} steps"
