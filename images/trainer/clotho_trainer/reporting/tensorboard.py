"""TensorBoard event files: a few dozen lines instead of a package, because scalars are all that is written.

A file is a sequence of records (length, checksum, Event, checksum); an Event is a protocol buffer with the time, the
step and a summary of tags with values.
"""

import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from clotho_contract.history import Evaluation
from clotho_trainer.reporting.tracking import Sample, evaluated

log = logging.getLogger(__name__)

_POLYNOMIAL: Final = 0x82F63B78  # of CRC-32C
_MASK: Final = 0xA282EAD8
_VERSION: Final = b"brain.Event:2"


class TensorBoardTracker:
    """Each start of the trainer has a file of its own; TensorBoard shows them as one run. A full disk stops nothing."""

    url: str | None = None

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._has_warned = False
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(clock())}.clotho"
        self._append(_double(1, clock()) + _bytes(3, _VERSION))

    def wants_samples(self, step: int) -> bool:
        return False

    def log(self, step: int, figures: Mapping[str, float], samples: Sequence[Sample]) -> None:
        values = (_bytes(1, _bytes(1, name.encode()) + _float(2, value)) for name, value in figures.items())
        self._append(_double(1, self._clock()) + _integer(2, step) + _bytes(5, b"".join(values)))

    def log_evaluation(self, evaluation: Evaluation) -> None:
        self.log(evaluation.step, evaluated(evaluation), ())

    def finish(self, exit_code: int) -> None:
        """Every record is complete on its own."""

    def _append(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        try:
            with self._path.open("ab") as file:
                file.write(length + _checksum(length) + event + _checksum(event))
        except OSError as error:
            if not self._has_warned:
                log.warning("%s cannot be written: %s", self._path, error)
            self._has_warned = True


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return bytes([field << 3 | 5]) + struct.pack("<f", value)


def _integer(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_ROWS: Final = tuple(map(_row, range(256)))


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TensorFlow's records have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _ROWS[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)
