"""Finds the user's own Python by `module:name`; failures are one sentence with the reason."""

import importlib
import sys
import traceback
from functools import reduce
from pathlib import Path
from typing import Any

from clotho_trainer.failures import TrainerError


def load(entry: str, folder: Path, where: str) -> Any:
    """`folder` holds the user's modules; `where` is the setting that names the entry."""
    module, _, name = entry.partition(":")
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # first: what the user wrote wins over an installed package of that name
    try:
        loaded = importlib.import_module(module)
    except Exception as error:  # the user's module runs, and may raise anything
        raise TrainerError("InvalidConfig", f"{where}: {_why_not(module, folder, error)}") from error
    try:
        return reduce(getattr, name.split("."), loaded)
    except AttributeError as error:
        known = ", ".join(sorted(each for each in vars(loaded) if not each.startswith("_"))) or "nothing"
        raise TrainerError("InvalidConfig", f"{where}: {module} has no {name}; it has {known}") from error


def _why_not(module: str, folder: Path, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
        there = ", ".join(sorted(path.stem for path in folder.glob("*.py"))) or "no modules"
        return f"there is no module {module}; {folder} has {there}"
    return f"importing {module} failed: {brief(error)}{place(error, folder)}"


def brief(error: BaseException) -> str:
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first}"


def place(error: BaseException, folder: Path | None = None) -> str:
    """Where in the user's own files the error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if folder is None or Path(frame.filename).is_relative_to(folder)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
