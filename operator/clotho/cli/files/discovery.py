"""Finds environments in Python files by reading them, never by importing: untrusted files run nothing here."""

from __future__ import annotations

import ast
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from clotho.cli.files.python_source import Source, UnreadableError, assigned, base_names, dotted, explain, parse

KIT: Final = "clotho_environment"
ATROPOS: Final = "atroposlib"
MAX_INHERITANCE: Final = 32  # classes between an environment and its library's base class
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
    sources = Sources()
    for path in python_files(paths, found.problems):
        try:
            source = sources.read(path)
        except UnreadableError as error:
            found.problems.append(Problem(path, str(error)))
            continue
        found.files_read += 1
        environments = environments_in(source, sources)
        found.environments += environments
        if unused := [each.class_name for each in environments if not each.is_run]:
            run = next(each.class_name for each in environments if each.flavour == "atropos" and each.is_run)
            what = f"several BaseEnv classes in one file: runs use {run}, never {' or '.join(unused)}"
            found.problems.append(Problem(path, what))
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
            problems.append(Problem(path, explain(error)))


@dataclass(frozen=True)
class Kind:
    """What a class turned out to be: its library, and the classes between it and the library's own, itself first."""

    flavour: Flavour
    ancestry: tuple[ast.ClassDef, ...] = ()


class Sources:
    """Parsed files, each read once, and what the classes in them are."""

    def __init__(self) -> None:
        self._read: dict[Path, Source] = {}
        self._kinds: dict[ast.ClassDef, Kind | None] = {}

    def read(self, path: Path) -> Source:
        if path not in self._read:
            self._read[path] = Source(path, parse(path))
        return self._read[path]

    def kind_of(self, node: ast.ClassDef, source: Source, depth: int = 0) -> Kind | None:
        """None for a class that is no environment, as far as the files can tell."""
        if depth > MAX_INHERITANCE:
            return None
        if node not in self._kinds:
            self._kinds[node] = None  # what a class that derives from itself finds
            bases = (self._kind_of_base(name, node, source, depth) for name in base_names(node))
            base = next((kind for kind in bases if kind), None)
            self._kinds[node] = Kind(base.flavour, (node, *base.ancestry)) if base else None
        return self._kinds[node]

    def _kind_of_base(self, name: str, node: ast.ClassDef, source: Source, depth: int) -> Kind | None:
        origin = source.origin(name)
        package, last = origin.partition(".")[0], origin.rpartition(".")[2]
        if last == "BaseEnv":
            return Kind("atropos")
        local = next((each for each in reversed(source.classes_by_name.get(name, ())) if each is not node), None)
        if local:
            return self.kind_of(local, source, depth + 1)
        if package == KIT and last == "Environment":
            return Kind("clotho")
        if package == ATROPOS and last.endswith("Env"):
            return Kind("atropos")
        return self._kind_of_import(origin, source, depth)

    def _kind_of_import(self, origin: str, source: Source, depth: int) -> Kind | None:
        module, _, class_name = origin.rpartition(".")
        file = source.find_module(module) if module else None
        try:
            imported = self.read(file) if file else None
        except UnreadableError:
            return None
        if imported is None or imported is source:
            return None
        classes = imported.classes_by_name.get(class_name)
        return self.kind_of(classes[-1], imported, depth + 1) if classes else None


def environments_in(source: Source, sources: Sources) -> list[FoundEnvironment]:
    kinds = [(node, kind) for node in source.classes if (kind := sources.kind_of(node, source))]
    run = _run_by_atropos(source.tree, [node.name for node, kind in kinds if kind.flavour == "atropos"])
    bases = {base.name for _, kind in kinds for base in kind.ancestry[1:]}
    return [
        _describe(kind, source.path, is_run=kind.flavour != "atropos" or node.name == run)
        for node, kind in kinds
        if node.name not in bases or (node.name == run if kind.flavour == "atropos" else _has_rollout(kind))
    ]


def _run_by_atropos(tree: ast.Module, classes: Sequence[str]) -> str:
    """The file is started as a program: that runs the class whose `cli()` it calls, by custom the last one."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = [dotted(call.value) for call in calls if isinstance(call, ast.Attribute) and call.attr == "cli"]
    return next((name for name in [*called, *reversed(classes)] if name in classes), "")


def _has_rollout(kind: Kind) -> bool:
    methods = (statement for node in kind.ancestry for statement in node.body)
    return any(isinstance(method, ast.AsyncFunctionDef) and method.name == "rollout" for method in methods)


def _describe(kind: Kind, path: Path, *, is_run: bool) -> FoundEnvironment:
    node = kind.ancestry[0]
    name = assigned(node, "name")
    given = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""
    is_atropos = kind.flavour == "atropos"
    return FoundEnvironment(
        name=given or (path.stem if is_atropos else node.name.lower()),
        class_name=node.name,
        path=path,
        description=(ast.get_docstring(node) or "").strip().partition("\n")[0].strip(),
        config_class=_atropos_config(kind) if is_atropos else _kit_config(kind),
        flavour=kind.flavour,
        is_run=is_run,
    )


def _atropos_config(kind: Kind) -> str:
    values = (assigned(node, "env_config_cls") for node in kind.ancestry)
    return next((name for value in values if value and (name := dotted(value))), "BaseEnvConfig")


def _kit_config(kind: Kind) -> str:
    for base in (base for node in kind.ancestry for base in node.bases):
        if isinstance(base, ast.Subscript):
            first = base.slice.elts[0] if isinstance(base.slice, ast.Tuple) and base.slice.elts else base.slice
            return dotted(first) or "Config"
    return "Config"
