"""Event files as TensorBoard reads them, byte by byte."""

import struct
from pathlib import Path

from clotho_contract.history import Evaluation
from clotho_trainer.reporting.tensorboard import TensorBoardTracker, _checksum


def records(path: Path) -> list[bytes]:
    """The events of a file whose lengths and checksums are right."""
    rest, found = path.read_bytes(), []
    while rest:
        (length,) = struct.unpack("<Q", rest[:8])
        event = rest[12 : 12 + length]
        assert rest[8:12] == _checksum(rest[:8])
        assert rest[12 + length : 16 + length] == _checksum(event)
        found.append(event)
        rest = rest[16 + length :]
    return found


def test_checksums_are_masked_crc_32c() -> None:
    crc = 0xE3069283  # of 123456789, the check value of CRC-32C
    assert _checksum(b"123456789") == struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def test_steps_and_evaluations_are_events(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path / "tensorboard", clock=lambda: 2.0)
    tracker.log(300, {"loss": 0.5}, ())
    tracker.log_evaluation(Evaluation(step=5, time="t", environment="sums", figures={"accuracy": 1.0}))
    tracker.finish(0)
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert file.name == "events.out.tfevents.2.clotho"
    time = b"\x09" + struct.pack("<d", 2.0)
    assert records(file) == [
        time + b"\x1a\x0dbrain.Event:2",
        time + b"\x10\xac\x02" + b"\x2a\x0d\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 0.5),
        time + b"\x10\x05" + b"\x2a\x21\x0a\x1f\x0a\x18evaluation/sums/accuracy\x15" + struct.pack("<f", 1.0),
    ]


def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path, clock=lambda: 2.0)
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    tracker.log(1, {"loss": 0.5}, ())
