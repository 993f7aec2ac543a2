"""A run as lines for a terminal: pure text from the object, so that it can be tested and drawn anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

Run = Mapping[str, Any]
BARS: Final = "▁▂▃▄▅▆▇█"
PLOT_FROM: Final = 3  # samples: fewer make no curve
PLOT_HEIGHT: Final = 6
FINISHED: Final = frozenset({"Completed", "Failed", "Stopped"})


def is_finished(run: Run) -> bool:
    return run.get("status", {}).get("phase") in FINISHED


def live_view(run: Run, rewards: Sequence[float], elapsed: float, width: int = 80) -> list[str]:
    """The whole picture while a run goes on."""
    status = run.get("status", {})
    heading = f"{run['metadata']['name']}  {status.get('phase', 'Pending')}  {duration(elapsed)}"
    lines = [heading, shorten(status.get("message", "Waiting for the operator."), width), ""]
    if progress := status.get("progress"):
        lines += [progress_line(progress, width), reward_line(progress, rewards, width), ""]
    return [*lines, *component_table(status.get("components", {}))]


def watch_view(run: Run, rewards: Mapping[int, float], elapsed: float, width: int = 80) -> list[str]:
    """The same with a plot of all rewards that were seen, once there are enough to make one."""
    lines = live_view(run, list(rewards.values()), elapsed, width)
    if len(rewards) < PLOT_FROM:
        return lines
    steps = sorted(rewards)
    chart = plot([rewards[step] for step in steps], min(width - 12, 72), PLOT_HEIGHT)
    axis = f"{'':10}reward, steps {steps[0]} to {steps[-1]}"
    return [*lines, "", *chart, axis]


def rewards_of(run: Run) -> dict[int, float]:
    """Mean rewards by step, as far as the status remembers them."""
    status = run.get("status", {})
    samples = [*status.get("history", ()), status.get("progress") or {}]
    return {sample["step"]: sample["rewardMean"] for sample in samples if sample.get("rewardMean") is not None}


def elapsed_seconds(run: Run, now: datetime | None = None) -> float:
    """Since it was created, until it ended or until now."""
    created = run["metadata"].get("creationTimestamp")
    if not created:
        return 0.0
    ended = run.get("status", {}).get("completionTime")
    end = datetime.fromisoformat(ended) if ended else now or datetime.now(UTC)
    return max(0.0, (end - datetime.fromisoformat(created)).total_seconds())


def plot(values: Sequence[float], width: int, height: int) -> list[str]:
    """Columns as high as the values, the range of which stands at the side."""
    low, high = min(values), max(values)
    scale = (height * 8 - 1) / (high - low) if high > low else 0.0
    levels = [1 + round((value - low) * scale) for value in spread(values, width)]
    lines = []
    for row in reversed(range(height)):
        label = number(high) if row == height - 1 else number(low) if row == 0 else ""
        cells = "".join((" " + BARS)[min(max(level - row * 8, 0), 8)] for level in levels)
        lines.append(f"{label:>8} ┤{cells}".rstrip())
    return lines


def progress_line(progress: Mapping[str, Any], width: int) -> str:
    step, total = progress["step"], progress["totalSteps"]
    eta = f"  {duration(progress['etaSeconds'])} left" if progress.get("etaSeconds") else ""
    text = f"  {step}/{total}  {progress['percent']}%{eta}"
    return f"  {bar(step / max(total, 1), max(10, min(40, width - len(text) - 4)))}{text}"


def reward_line(progress: Mapping[str, Any], rewards: Sequence[float], width: int) -> str:
    if progress.get("rewardMean") is None:
        return "  reward  (no step yet)"
    speed = f"  {progress['tokensPerSecond']:,.0f} tok/s" if progress.get("tokensPerSecond") else ""
    room = max(8, width - 24 - len(speed))
    return f"  reward  {progress['rewardMean']:.2f}  {sparkline(rewards, room)}{speed}"


def component_table(components: Mapping[str, Any]) -> list[str]:
    parts = [components.get("apiServer"), components.get("trainer"), *components.get("environments", [])]
    rows = [
        [
            part["name"],
            part["state"],
            f"{part.get('ready', 0)}/{part.get('replicas', 1)}",
            str(part.get("restarts", 0)),
            part.get("pod", ""),
        ]
        for part in parts
        if part
    ]
    return table(["COMPONENT", "STATE", "READY", "RESTARTS", "POD"], rows) if rows else []


def results_view(run: Run) -> list[str]:
    """What a finished run leaves behind."""
    status = run["status"]
    history = [
        [str(sample["step"]), number(sample.get("rewardMean")), number(sample.get("loss"), 4)]
        for sample in status.get("history", [])
    ]
    lines = [status.get("message", ""), ""]
    if history:
        lines += [*table(["STEP", "REWARD", "LOSS"], history), ""]
    if results := status.get("results"):
        lines += [f"  final reward  {number(results.get('rewardMean'))}", f"  steps         {results['step']}"]
        if results.get("path"):
            lines.append(f"  weights       {results['path']} on claim {results.get('claim', '-')}")
    return lines


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    everything = [header, *rows]
    widths = [max(len(row[column]) for row in everything) for column in range(len(header))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in everything]


def sparkline(values: Sequence[float], room: int) -> str:
    """The newest values that fit, scaled to the range of all of them."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in spread(values, room))


def spread(values: Sequence[float], room: int) -> list[float]:
    """At most `room` of them, first and last included."""
    if len(values) <= room:
        return list(values)
    return [values[round(index * (len(values) - 1) / (room - 1))] for index in range(room)]


def bar(fraction: float, width: int) -> str:
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
