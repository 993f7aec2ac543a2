"""What a live view leaves on a terminal, for a small model of one; and in a log."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from clotho.cli.terminal import view
from clotho.cli.terminal.screen import Screen, page_width

POD = "letters-of-the-alphabet-29a772e1-env-letters-of-the-alphabet"
MESSAGE = "Waiting for a node with 1 nvidia.com/gpu: 0/3 nodes are available (insufficient nvidia.com/gpu)."
SIZES = [(60, 24), (80, 24), (100, 12), (100, 5), (20, 10), (200, 50)]


class Terminal(io.StringIO):
    """Rows of cells; what scrolls out at the top is kept in `gone`. Wide letters are not needed here."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self._width, self._height = width, height
        self.rows, self.gone = [""], list[str]()
        self._row, self._column = 0, 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for up, command, letter in re.findall(r"\033\[(\d*)([AKJ])|([\s\S])", text):
            if command == "A":
                self._row = max(0, self._row - int(up))
            elif command:
                self.rows[self._row] = self.rows[self._row][: self._column]
                del self.rows[self._row + 1 if command == "J" else len(self.rows) :]
            elif letter == "\n":
                self._next_row()
            else:
                self._put(letter)
        return len(text)

    def _put(self, letter: str) -> None:
        if self._column == self._width:
            self._next_row()
        row = self.rows[self._row].ljust(self._column)
        self.rows[self._row] = row[: self._column] + letter + row[self._column + 1 :]
        self._column += 1

    def _next_row(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self.rows):
            self.rows.append("")
        if self._row == self._height:
            self.gone.append(self.rows.pop(0))
            self._row -= 1


def run(step: int, environments: int = 2, name: str = "letters-of-the-alphabet") -> dict[str, Any]:
    part = {"state": "Ready", "ready": 1}
    return {
        "metadata": {"name": name},
        "status": {
            "phase": "Running",
            "message": MESSAGE,
            "progress": {"step": step, "totalSteps": 3000, "percent": 1, "rewardMean": 0.5, "tokensPerSecond": 4310.4},
            "components": {
                "apiServer": part | {"name": "api-server", "pod": "letters-api-server"},
                "trainer": part | {"name": "trainer", "pod": "letters-trainer"},
                "environments": [part | {"name": f"e{each}", "pod": f"{POD}-{each}"} for each in range(environments)],
            },
        },
    }


def frame(step: int, width: int, **about: Any) -> view.Frame:
    return view.watch_view(run(step, **about), {at: at / 10 for at in range(step)}, float(step), width)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_frame_replaces_the_one_before(width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    terminal = Terminal(width, height)
    screen = Screen(terminal)
    terminal.write("$ run watch\n")
    for step in (10, 11, 9):
        screen.show(frame(step, width))
    *rows, last = terminal.rows
    assert last == ""
    assert [row.rstrip() for row in rows if row != "$ run watch"] == [
        line.rstrip() for line in frame(9, width).lines(width, height - 1)
    ]
    assert terminal.gone in ([], ["$ run watch"])


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_frame_fits(width: int, height: int) -> None:
    lines = frame(10, width, environments=40, name="n" * 63).lines(width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[0].endswith("  Running  10 s")


def test_on_small_screens_the_plot_is_dropped_before_table_rows() -> None:
    whole = frame(10, 100).lines(100)
    table_end = next(number for number, line in enumerate(whole) if "e1 " in line) + 1
    assert whole[-1].strip() == "reward, steps 0 to 9"
    assert frame(10, 100).lines(100, len(whole)) == whole
    assert frame(10, 100).lines(100, len(whole) - 1) == whole[:table_end]
    assert frame(10, 100).lines(100, table_end - 1) == [*whole[: table_end - 2], "  … 2 more"]


def test_the_message_is_wrapped_not_cut() -> None:
    lines = frame(10, 60).lines(60, 8)
    assert " ".join(lines[1:3]) == MESSAGE


def test_in_a_table_too_wide_the_pods_are_shortened() -> None:
    lines = frame(10, 60).lines(60)
    assert "  api-server  Ready  1/1    0         letters-api-server" in lines
    assert "  e0          Ready  1/1    0         letters-of-the-alphab…" in lines


def test_a_long_name_hides_no_state() -> None:
    part = {"name": "n" * 63, "state": "Starting", "pod": "p" * 63}
    _, row = view.component_table({"trainer": part}, "Running", 60)
    assert row.split() == ["n" * 14 + "…", "Starting", "0/1", "0", "p" * 13 + "…"]


def test_inference_replicas_are_counted_between_the_trainer_and_the_environments() -> None:
    components = {
        "trainer": {"name": "trainer", "state": "Ready", "ready": 1},
        "inference": {"name": "inference", "state": "Starting", "replicas": 3, "ready": 2, "restarts": 1},
        "environments": [{"name": "math", "state": "Ready", "ready": 1}],
    }
    _, *rows = view.component_table(components, "Running", 80)
    assert [row.split()[0] for row in rows] == ["trainer", "inference", "math"]
    assert rows[1].split()[:4] == ["inference", "Starting", "2/3", "1"]


def test_ranks_are_counted_and_the_missing_one_is_named() -> None:
    missing = "trainer-1 on node gpu-b: starting."
    part = {"name": "trainer", "state": "Starting", "replicas": 2, "ready": 1, "ranks": "8/16", "message": missing}
    _, row, note = view.component_table({"trainer": part}, "Starting", 80)
    assert row.split()[:5] == ["trainer", "Starting", "8/16", "ranks", "0"]
    assert note == f"  trainer: {missing}"


def test_a_log_gets_a_line_when_something_is_new() -> None:
    log = io.StringIO()
    screen = Screen(log)
    for step, elapsed in ((10, 1.0), (10, 2.0), (10, 3.0)):
        screen.show(view.watch_view(run(step), {}, elapsed, page_width()))
    changed = run(11)
    changed["status"]["progress"]["rewardMean"] = 0.75
    screen.show(view.watch_view(changed, {}, 4.0, page_width()))
    assert [line.partition(" s  ")[2] for line in log.getvalue().splitlines()] == [
        f"Running: {MESSAGE}  reward 0.50",
        f"Running: {MESSAGE}  reward 0.75",
    ]


def test_control_characters_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    bad = run(1)
    bad["status"]["message"] = "All done.\x1b[2J"
    terminal = Terminal(80, 24)
    Screen(terminal).show(view.watch_view(bad, {}, 1.0))
    assert terminal.rows[1] == "All done.\ufffd[2J"
