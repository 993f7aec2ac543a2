"""Kubernetes' way of writing sizes, as bytes."""

from decimal import Decimal
from typing import Final

_UNITS: Final = {
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)},
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), start=1)},
}


def quantity_bytes(text: str) -> int:
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return int(Decimal(text.removesuffix(unit)) * factor)
    return int(Decimal(text))
