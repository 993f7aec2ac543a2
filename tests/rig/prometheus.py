"""Debian's Prometheus and promtool: installed when that is possible, else the tests that need them are skipped."""

import shutil

import pytest

from clotho_dev.cluster import packages
from clotho_dev.cluster.failure import ClusterError


def require(program: str) -> str:
    """Where `prometheus` or `promtool` is."""
    try:
        packages.require({program: "prometheus"})
    except ClusterError as error:
        pytest.skip(f"no {program} here: {error}")
    return shutil.which(program) or program
