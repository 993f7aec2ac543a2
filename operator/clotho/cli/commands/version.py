"""`--version`: of the installed package."""

import argparse
from importlib.metadata import version


def show(_: argparse.Namespace) -> int:
    print(f"clotho {version('clotho')}")
    return 0
