"""Kubernetes' way of writing sizes and amounts, as numbers."""

from decimal import Decimal
from typing import Final

_UNITS: Final = {
    **{unit: Decimal(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{unit: Decimal(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{unit: Decimal(1000) ** -power for power, unit in enumerate(("m", "u", "n"), start=1)},
}


def quantity(text: str | int) -> Decimal:
    for unit, factor in _UNITS.items():
        if str(text).endswith(unit):
            return Decimal(str(text).removesuffix(unit)) * factor
    return Decimal(text)


def quantity_bytes(text: str) -> int:
    return int(quantity(text))
