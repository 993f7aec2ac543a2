"""Run by the interpreter that has atroposlib: describes many Atropos files, each in a fork of one warm interpreter.

Importing atroposlib takes seconds, so it is imported once. Each file is also started as `python FILE --help` would be,
which shows whether a file that cannot be described could be run at all.
"""

import importlib.util
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 300


def main() -> None:
    introspect = _load(sys.argv[1])
    import atroposlib.envs.base  # type: ignore[import-not-found]  # noqa: F401 - warm for every fork

    folder = Path(sys.argv[2])
    for number, file in enumerate(sys.argv[3:]):
        described = _forked(introspect.describe, file, folder / f"{number}.json")
        started = _forked(_start, file, folder / f"{number}-start.json") if "error" in described else {}
        print(json.dumps({"file": file, "described": described, "started": started}), flush=True)


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("introspect", path)
    assert spec is not None  # noqa: S101 - a Python file has one
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _start(file: str) -> dict[str, object]:
    sys.argv = [file, "--help"]
    sys.path[0] = str(Path(file).resolve().parent)
    runpy.run_path(file, run_name="__main__")
    return {}


def _forked(work: Callable[[str], dict[str, Any]], file: str, report: Path) -> dict[str, Any]:
    """What the work returns in a process of its own, or `{"error": ...}` with its last line."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        _silence(report.with_suffix(".log"))
        try:
            result = work(file)
        except SystemExit as error:
            result = {} if error.code in (0, None) else {"error": f"SystemExit: {error.code}"}
        except BaseException as error:
            result = {"error": "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]}
        report.write_text(json.dumps(result, default=str))
        os._exit(0)
    os.waitpid(child, 0)
    if not report.exists():
        return {"error": f"killed, or not finished after {SECONDS} s"}
    reported: dict[str, Any] = json.loads(report.read_text())
    return reported


def _silence(log: Path) -> None:
    file = os.open(log, os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)


if __name__ == "__main__":
    main()
