"""Finds environments in Python files by reading them, never by importing: files of strangers run nothing here."""

from __future__ import annotations

import ast
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

SIZE_LIMIT: Final = 1024 * 1024  # no environment is written by hand beyond this
KIT: Final = "clotho_environment"
Flavour = Literal["atropos", "clotho"]


@dataclass(frozen=True)
class FoundEnvironment:
    name: str
    class_name: str
    path: Path
    description: str
    config_class: str
    flavour: Flavour
    is_run: bool = True  # an Atropos file runs one of its classes, whatever others it has

    @property
    def file(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Problem:
    """A file or folder that could not be read; the others are not affected."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass
class Discovery:
    environments: list[FoundEnvironment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files_read: int = 0


def discover(paths: Sequence[Path]) -> Discovery:
    found = Discovery()
    for path in python_files(paths, found.problems):
        try:
            tree = parse(path)
        except UnreadableError as error:
            found.problems.append(Problem(path, str(error)))
            continue
        found.files_read += 1
        environments = environments_in(tree, path)
        found.environments += environments
        if idle := [each.class_name for each in environments if not each.is_run]:
            run = next(each.class_name for each in environments if each.flavour == "atropos" and each.is_run)
            told = f"several BaseEnv classes in one file: runs use {run}, never {' or '.join(idle)}"
            found.problems.append(Problem(path, told))
    return found


def python_files(paths: Sequence[Path], problems: list[Problem]) -> Iterator[Path]:
    """Each file once, in order of their names; a named file always counts, those in folders unless hidden or `_`."""
    seen: set[tuple[int, int]] = set()
    for path in paths:
        yield from _walk(path, problems, seen, is_named=True)


def _walk(path: Path, problems: list[Problem], seen: set[tuple[int, int]], *, is_named: bool) -> Iterator[Path]:
    try:
        status = path.stat()  # follows links: a link that leads in circles fails here
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        if stat.S_ISDIR(status.st_mode):
            for entry in sorted(path.iterdir()):
                if not entry.name.startswith((".", "_")):
                    yield from _walk(entry, problems, seen, is_named=False)
        elif path.suffix == ".py" and stat.S_ISREG(status.st_mode):
            yield path
        elif is_named:
            problems.append(Problem(path, "neither a folder nor a Python file"))
    except (OSError, RuntimeError) as error:
        if is_named or path.suffix == ".py" or path.is_dir():
            problems.append(Problem(path, _reason(error)))


class UnreadableError(Exception):
    """Why a file is not Python that can be read."""


def parse(path: Path) -> ast.Module:
    try:
        with path.open("rb") as file:
            source = file.read(SIZE_LIMIT + 1)
        if len(source) > SIZE_LIMIT:
            size = path.stat().st_size
            raise UnreadableError(f"{size / 1e6:.1f} MB; files above {SIZE_LIMIT / 1e6:.1f} MB are not read")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the strangers' style we say nothing
            return ast.parse(source, filename=str(path))
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise UnreadableError(f"does not parse: {where}{error.msg}") from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(_reason(error)) from None


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, RecursionError | MemoryError):
        return "does not parse: nested too deeply"
    return f"does not parse: {error}"


def environments_in(tree: ast.Module, path: Path) -> list[FoundEnvironment]:
    kit_names = _kit_names(tree)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = [_describe(node, path, flavour) for node in classes if (flavour := _flavour(node, kit_names))]
    run = _run_by_atropos(tree, [each.class_name for each in found if each.flavour == "atropos"])
    return [replace(each, is_run=each.flavour != "atropos" or each.class_name == run) for each in found]


def _run_by_atropos(tree: ast.Module, classes: Sequence[str]) -> str:
    """The file is started as a program: that runs the class whose `cli()` it calls, by custom the last one."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = [_dotted(call.value) for call in calls if isinstance(call, ast.Attribute) and call.attr == "cli"]
    return next((name for name in [*called, *reversed(classes)] if name in classes), "")


def _kit_names(tree: ast.Module) -> frozenset[str]:
    """What the file calls the kit's `Environment`: a class of that name may be a template engine's."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == KIT:
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "Environment"}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == KIT:
                    names.add(f"{alias.asname or alias.name}.Environment")
    return frozenset(names)


def _flavour(node: ast.ClassDef, kit_names: frozenset[str]) -> Flavour | None:
    for base in node.bases:
        name = _dotted(base.value if isinstance(base, ast.Subscript) else base)
        if name.rpartition(".")[2] == "BaseEnv":
            return "atropos"
        if name in kit_names:
            return "clotho"
    return None


def _describe(node: ast.ClassDef, path: Path, flavour: Flavour) -> FoundEnvironment:
    given = _constant(node, "name")
    default = path.stem if flavour == "atropos" else node.name.lower()
    return FoundEnvironment(
        name=given or default,
        class_name=node.name,
        path=path,
        description=(ast.get_docstring(node) or "").strip().partition("\n")[0].strip(),
        config_class=_atropos_config(node) if flavour == "atropos" else _kit_config(node),
        flavour=flavour,
    )


def _assigned(node: ast.ClassDef, name: str) -> ast.expr | None:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return statement.value
    return None


def _constant(node: ast.ClassDef, name: str) -> str:
    value = _assigned(node, name)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _atropos_config(node: ast.ClassDef) -> str:
    value = _assigned(node, "env_config_cls")
    return (_dotted(value) if value else "") or "BaseEnvConfig"


def _kit_config(node: ast.ClassDef) -> str:
    for base in node.bases:
        if isinstance(base, ast.Subscript):
            first = base.slice.elts[0] if isinstance(base.slice, ast.Tuple) and base.slice.elts else base.slice
            return _dotted(first) or "Config"
    return "Config"


def _dotted(expression: ast.expr) -> str:
    """`a.b.c`, or nothing for whatever else may stand there."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    return ".".join([expression.id, *reversed(parts)]) if isinstance(expression, ast.Name) else ""


def local_imports(path: Path) -> list[Path]:
    """The file and the files beside it that it imports, and those that they import: what it needs to run elsewhere."""
    needed, waiting = {path}, [path]
    while waiting:
        current = waiting.pop()
        try:
            modules = _imported_modules(parse(current))
        except UnreadableError:
            continue
        for module in modules:
            neighbour = path.parent / f"{module}.py"
            if neighbour not in needed and neighbour.is_file():
                needed.add(neighbour)
                waiting.append(neighbour)
    return sorted(needed)


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def defined_names(path: Path) -> frozenset[str]:
    """What a module may have under a name, wherever in it; `*` for what it takes from another module as a whole."""
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)
