"""A run as lines for a terminal: pure text from the object, so that it can be tested and drawn anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from clotho.api.phases import FINISHED_PHASES, RESTING_PHASES
from clotho.cli.terminal.fitting import UNLIMITED, clip, columns, first_rows, table, wrap
from clotho.workspace.progress import progress_of

Run = Mapping[str, Any]
BARS: Final = "▁▂▃▄▅▆▇█"
PLOT_FROM: Final = 3  # samples: fewer make no curve
PLOT_HEIGHT: Final = 6
WIDEST_CURVE: Final = 72


class Frame(NamedTuple):
    """A run at one moment, in sections; some of them can be left out."""

    heading: str
    message: str
    news: str  # the line for a log
    progress: list[str]
    components: list[str]
    plot: list[str]

    def lines(self, width: int, height: int = UNLIMITED) -> list[str]:
        """Where there is no room, the plot is left out first, then rows of the table, the message last."""
        top = [self.heading, *wrap(self.message, width), "", *self.progress]
        lines = [*top, *first_rows(self.components, height - len(top))]
        if self.plot and len(lines) + 1 + len(self.plot) <= height:
            lines += ["", *self.plot]
        return [clip(line, width) for line in lines[:height]]


def is_finished(run: Run) -> bool:
    return run.get("status", {}).get("phase") in FINISHED_PHASES


def live_view(run: Run, rewards: Sequence[float], elapsed: float, width: int = 80) -> list[str]:
    """The whole picture at one moment."""
    return _frame(run, rewards, elapsed, width).lines(width)


def watch_view(run: Run, rewards: Mapping[int, float], elapsed: float, width: int = 80) -> Frame:
    """The same with a plot of the rewards seen so far, once there are enough."""
    frame = _frame(run, list(rewards.values()), elapsed, width)
    if len(rewards) < PLOT_FROM:
        return frame
    steps = sorted(rewards)
    chart = plot([rewards[step] for step in steps], max(2, min(width - 12, WIDEST_CURVE)), PLOT_HEIGHT)
    axis = f"{'':10}reward, steps {steps[0]} to {steps[-1]}"
    return frame._replace(plot=[*chart, axis])


def _frame(run: Run, rewards: Sequence[float], elapsed: float, width: int) -> Frame:
    status = run.get("status", {})
    phase = status.get("phase", "Pending")
    message = " ".join(status.get("message", "Waiting for the operator.").split())
    progress = progress_of(run)
    reward = progress.get("rewardMean")
    state = f"  {phase}  {duration(elapsed)}"
    return Frame(
        heading=clip(run["metadata"]["name"], max(1, width - columns(state))) + state,
        message=message,
        news=f"{phase}: {message}" + (f"  reward {number(reward)}" if reward is not None else ""),
        progress=[progress_line(progress, width), reward_line(progress, rewards, width), ""] if progress else [],
        components=component_table(status.get("components", {}), phase, width),
        plot=[],
    )


def component_state(phase: str, state: str) -> str:
    """In a run without pods, no component is starting or missing."""
    if phase not in RESTING_PHASES or state in ("Failed", "Stopping", "Stopped"):
        return state
    if state == "Missing":
        return "-"
    return "Finished" if phase == "Completed" or state == "Succeeded" else "Stopping"


def elapsed_seconds(run: Run, now: datetime | None = None) -> float:
    """Since it was created, until it ended or until now."""
    created = run["metadata"].get("creationTimestamp")
    if not created:
        return 0.0
    ended = run.get("status", {}).get("completionTime")
    end = datetime.fromisoformat(ended) if ended else now or datetime.now(UTC)
    return max(0.0, (end - datetime.fromisoformat(created)).total_seconds())


def plot(values: Sequence[float], width: int, height: int) -> list[str]:
    """A column chart, its range at the side."""
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
    room = max(8, min(width - 24 - len(speed), WIDEST_CURVE))
    return f"  reward  {number(progress['rewardMean'])}  {sparkline(rewards, room)}{speed}"


def component_table(components: Mapping[str, Any], phase: str, width: int) -> list[str]:
    fixed = [components.get(name) for name in ("apiServer", "trainer", "inference")]
    parts = [*fixed, *components.get("environments", [])]
    rows = [_component_row(part, component_state(phase, part["state"])) for part in parts if part]
    lines = table(["COMPONENT", "STATE", "READY", "RESTARTS", "POD"], rows, width - 2)
    notes = [f"{part['name']}: {part['message']}" for part in parts if part and part.get("message")]
    lines += [line for note in notes for line in wrap(note, width - 2)]
    return [f"  {line}" for line in lines] if rows else []


def _component_row(part: Mapping[str, Any], state: str) -> list[str]:
    ranks = f"{part['ranks']} ranks" if part.get("ranks") else ""
    has_pods = state not in ("-", "Finished", "Stopped")
    ready = (ranks or f"{part.get('ready', 0)}/{part.get('replicas', 1)}") if has_pods else "-"
    return [part["name"], state, ready, str(part.get("restarts", 0)), part.get("pod", "")]


def evaluation_lines(run: Run) -> list[str]:
    rows = [_evaluation_row(each) for each in run.get("status", {}).get("evaluations", ())]
    header = ["EVALUATION", "FIGURE", "NEWEST", "STEP", "HIGHEST", "STEP"]
    return [f"  {line}" for line in table(header, rows)] if rows else []


def _evaluation_row(each: Mapping[str, Any]) -> list[str]:
    newest, highest = f"{each['value']:.4g}", f"{each['best']:.4g}"
    return [each["environment"], each["figure"], newest, str(each["step"]), highest, str(each["bestStep"])]


def condition_lines(conditions: Sequence[Mapping[str, Any]], shown: str) -> list[str]:
    """Without the message of the run, which is `shown` above them."""
    return [condition_line(each, shown) for each in conditions]


def condition_line(condition: Mapping[str, Any], shown: str = "") -> str:
    message = condition.get("message")
    detail = f": {message}" if message and message != shown else ""
    return f"  {condition['type']}={condition['status']}  {condition['reason']}{detail}"


def results_view(run: Run, fetch: str = "") -> list[str]:
    """What a finished run leaves behind, and the command that copies it here."""
    status = run["status"]
    history = [
        [str(sample["step"]), number(sample.get("rewardMean")), number(sample.get("loss"), 4)]
        for sample in status.get("history", [])
    ]
    lines = [status.get("message", ""), ""]
    if history:
        lines += [*(f"  {line}" for line in table(["STEP", "REWARD", "LOSS"], history)), ""]
    if results := status.get("results"):
        lines += [f"  final reward  {number(results.get('rewardMean'))}", f"  steps         {results['step']}"]
        if results.get("path"):
            lines.append(f"  weights       {results['path']} on claim {results.get('claim', '-')}")
    export = status.get("export") or {}
    if files := exported_files(run):
        lines += ["", *(f"  {line}" for line in file_lines(files))]
    elif export:
        lines.append(f"  export        {export['phase']}: {export.get('message', '')}".rstrip(": "))
    if fetch and (status.get("results") or {}).get("path"):
        lines += ["", f"To copy the model here: {fetch}"]
    return lines


def exported_files(run: Run) -> list[Mapping[str, Any]]:
    """Path and size of each file that the run's export wrote."""
    export = run.get("status", {}).get("export") or {}
    return list(export.get("files", ())) if export.get("phase") == "Completed" else []


def file_lines(files: Sequence[Mapping[str, Any]]) -> list[str]:
    return table(["FILE", "SIZE"], [[each["path"], size(each["bytes"])] for each in files]) if files else []


def size(count: float) -> str:
    """`812 B`, `4.2 MB`: powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


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


def number(value: float | None, digits: int = 2) -> str:
    """Without a minus before zero."""
    return "-" if value is None else f"{value:z.{digits}f}"
