"""Which Python modules an image has, for entries that name one it has not."""

import pkgutil
import sys


def missing_module(name: str, error: BaseException | None) -> str:
    """The first part of `name` that does not exist; empty when the error is of something that it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing if missing and f"{name}.".startswith(f"{missing}.") else ""


def modules_beside(name: str) -> list[str]:
    """Those of the same package, by their full names; the packages above are imported already."""
    package, dot, _ = name.rpartition(".")
    path = getattr(sys.modules.get(package), "__path__", []) if package else None
    return [f"{package}{dot}{module.name}" for module in pkgutil.iter_modules(path)]
