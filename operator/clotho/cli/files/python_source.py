"""Reads Python files without importing them: their classes, and where the names in them come from."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

SIZE_LIMIT: Final = 1024 * 1024  # no environment is written by hand beyond this


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
            warnings.simplefilter("ignore")  # the style of untrusted files is not our concern
            return ast.parse(source, filename=str(path))
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise UnreadableError(f"does not parse: {where}{error.msg}") from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(explain(error)) from None


def explain(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, RecursionError | MemoryError):
        return "does not parse: nested too deeply"
    return f"does not parse: {error}"


@dataclass(frozen=True)
class Source:
    """One parsed file."""

    path: Path
    tree: ast.Module

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @cached_property
    def classes_by_name(self) -> dict[str, list[ast.ClassDef]]:
        named: dict[str, list[ast.ClassDef]] = {}
        for node in self.classes:
            named.setdefault(node.name, []).append(node)
        return named

    @cached_property
    def imports(self) -> dict[str, str]:
        """What each imported name stands for: `{"E": "clotho_environment.Environment"}`; relative ones keep dots."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                separator = "" if module.endswith(".") else "."
                names |= {alias.asname or alias.name: module + separator + alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        return names

    def origin(self, name: str) -> str:
        """The dotted name with its first part as it was imported."""
        head, dot, rest = name.partition(".")
        return self.imports.get(head, head) + dot + rest

    def find_module(self, module: str) -> Path | None:
        """The file of an imported module: beside this one, or below one of its parent folders."""
        name = module.lstrip(".")
        level = len(module) - len(name)
        folders = [self.path.parent, *self.path.parent.parents]
        for folder in folders[level - 1 : level] if level else folders:
            file = folder.joinpath(*name.split(".")).with_suffix(".py") if name else folder / "__init__.py"
            if file.is_file():
                return file
        return None


def base_names(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        yield dotted(base.value if isinstance(base, ast.Subscript) else base)


def dotted(expression: ast.expr) -> str:
    """`a.b.c`, or nothing for any other expression."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    return ".".join([expression.id, *reversed(parts)]) if isinstance(expression, ast.Name) else ""


def assigned(node: ast.ClassDef, name: str) -> ast.expr | None:
    """The value of a class attribute."""
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
    """Every name that a module may define, at any level; `*` where it imports all names of another module."""
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)
