"""`--version`: of the installed package."""

import argparse
from importlib.metadata import version


def own_version() -> str:
    return version("clotho-rl")


def show(_: argparse.Namespace) -> int:
    print(f"clotho {own_version()}")
    return 0
