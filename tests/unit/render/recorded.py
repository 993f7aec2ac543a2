"""Everything whose manifests are recorded in golden/, by file."""

from collections.abc import Callable
from functools import partial
from typing import Any

from unit.render.cases import CASES, SETTINGS, render_all
from unit.render.catalogue_cases import render_environment, render_test

RECORDED: dict[str, Callable[[], list[dict[str, Any]]]] = {
    **{case: partial(render_all, spec) for case, spec in CASES.items()},
    "environment": partial(render_environment, SETTINGS),
    "inference-test": partial(render_test, SETTINGS),
}
