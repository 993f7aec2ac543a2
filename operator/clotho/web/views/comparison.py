"""Several runs over one another: where their settings differ, then the settings that they share."""

from collections.abc import Mapping, Sequence
from typing import Any

from clotho.authoring.differences import differences, flat

Object = Mapping[str, Any]
View = dict[str, Any]


def compared_settings(runs: Sequence[Object]) -> View:
    """One value for each run, in their order; null where a run does not set it."""
    specs = [flat(run.get("spec", {})) for run in runs]
    apart = differences(specs)
    paths = dict.fromkeys(path for spec in specs for path in spec)
    alike = {path: specs[0].get(path) for path in paths if path not in apart}
    return {
        "different": [{"setting": path, "values": values} for path, values in apart.items()],
        "same": [{"setting": path, "value": value} for path, value in alike.items()],
    }
