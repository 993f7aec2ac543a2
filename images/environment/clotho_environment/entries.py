"""Finds the environment of an entry: a built-in one, a class in a module or file, or one of another library."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from clotho_contract.entries import FORMS, task_problem
from clotho_contract.nearest import nearest
from clotho_environment.modules import missing_module, modules_beside
from clotho_environment.sdk.environment import AnyEnvironment, Environment


class EntryError(Exception):
    """The entry names no environment; the message has what was tried and what exists."""


@dataclass(frozen=True, slots=True)
class NativeEntry:
    """A class of this kit, and config fields that the entry itself decides."""

    kind: type[AnyEnvironment]
    preset: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AtroposEntry:
    """An unchanged Atropos environment file, run as a program of its own."""

    path: Path


def find_entry(entry: str) -> NativeEntry | AtroposEntry:
    if not entry:
        raise EntryError(f"the environment has no entry; use {FORMS}")
    scheme, _, rest = entry.partition(":")
    match scheme:
        case "letters" if not rest:
            from clotho_environment.builtin.letters import Letters

            return NativeEntry(Letters)
        case "atropos":
            return AtroposEntry(_existing(Path(rest)))
        case "reasoning-gym":
            return _reasoning_gym(rest)
        case "verifiers":
            return _verifiers(rest)
    if scheme.endswith(".py"):
        path = _existing(Path(scheme))
        return NativeEntry(_complete(_class_in(_load_file(path), rest, str(path))))
    if rest:
        return NativeEntry(_complete(_class_in(_load_module(scheme), rest, scheme)))
    raise EntryError(f"{entry!r} is not an entry; use {FORMS}")


def _reasoning_gym(task: str) -> NativeEntry:
    try:
        from clotho_environment.builtin.reasoning_gym import TASKS, ReasoningGym
    except ImportError as error:
        raise EntryError(str(error)) from error
    if problem := task_problem(task, TASKS):
        raise EntryError(problem)
    return NativeEntry(ReasoningGym, {"task": task})


def _verifiers(taskset: str) -> NativeEntry:
    try:
        from clotho_environment.builtin.verifiers import Verifiers, taskset_problem
    except ImportError as error:
        raise EntryError(str(error)) from error
    if taskset.endswith(".py"):
        path = _existing(Path(taskset))
        _search_in(path.parent)
        taskset = path.stem
    if problem := taskset_problem(taskset):
        raise EntryError(problem)
    return NativeEntry(Verifiers, {"taskset": taskset})


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise EntryError(f"there is no file {path} in this image (looked in {Path.cwd()})")
    return path


def _search_in(folder: Path) -> None:
    directory = str(folder.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)


def _load_file(path: Path) -> ModuleType:
    """Import by path, under the file's own name so that pickling and siblings work as if it were run from there."""
    _search_in(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise EntryError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise EntryError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        if missing := missing_module(name, error):
            near = nearest(missing, modules_beside(missing), most=1, similarity=0.8)  # among hundreds some are alike
            raise EntryError(f"there is no module {missing} in this image{near}") from error
        raise EntryError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _class_in(module: ModuleType, name: str, where: str) -> type[AnyEnvironment]:
    found = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Environment) and value.__module__ == module.__name__
    }
    if name:
        wanted = getattr(module, name, None)
        if isinstance(wanted, type) and issubclass(wanted, Environment):
            return wanted
        hint = nearest(name, found) or f"; its environment classes: {', '.join(found) or 'none'}"
        raise EntryError(f"{where} has no environment class {name}{hint}")
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise EntryError(f"{where} has no subclass of clotho_environment.Environment")
    raise EntryError(f"{where} has several environment classes: {', '.join(found)}; write {where}:{next(iter(found))}")


def _complete(kind: type[AnyEnvironment]) -> type[AnyEnvironment]:
    missing = [name for name in ("items", "rollout") if getattr(kind, name) is getattr(Environment, name)]
    if missing:
        raise EntryError(f"{kind.__name__} is incomplete: it has no {' and no '.join(f'{m}()' for m in missing)}")
    return kind
