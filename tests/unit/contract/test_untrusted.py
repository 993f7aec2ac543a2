"""Whatever a pod writes, its reader gets either what it expects or an error that it expects."""

import msgspec
import pytest

from clotho_contract import description, exports, progress, termination

DEEP = [opening * 2000 + closing * 2000 for opening, closing in (("[", "]"), ('{"a":', "}"))]


@pytest.mark.parametrize("deep", DEEP)
def test_deep_json_is_a_decode_error(deep: str) -> None:
    for module in (progress, exports, description):
        with pytest.raises(msgspec.MsgspecError):
            module.decode(f'{{"unknown": {deep}}}'.encode())  # type: ignore[attr-defined]
    assert termination.decode(f'{{"reason": {deep}}}') is None


def test_bytes_that_are_no_utf8_are_a_decode_error() -> None:
    for module in (progress, exports, description):
        with pytest.raises(msgspec.MsgspecError):
            module.decode(b'{"name": "\xff", "state": "\xff", "files": "\xff"}')  # type: ignore[attr-defined]


def test_a_default_that_is_nested_deeply_is_left_out() -> None:
    def field(levels: int) -> dict[str, object]:
        return {"name": "f", "default": msgspec.Raw(b"[" * levels + b"]" * levels)}

    body = msgspec.json.encode({"name": "e", "fields": [field(10), field(200)]})
    shallow, deep = description.bounded(description.decode(body)).fields
    assert shallow.default is not None
    assert deep.default is None


def test_figures_that_no_trainer_can_mean_are_left_out() -> None:
    wild = {"state": "training", "step": 3, "totalSteps": 9, "secondsPerStep": 1e308, "loss": -1e300, "rewardMean": 0.5}
    wild |= {"tokensPerSecond": -1.0, "history": [{"step": 1, "loss": 1e200, "rewardMean": 0.25}]}
    found = progress.decode(msgspec.json.encode(wild))
    assert (found.seconds_per_step, found.loss, found.tokens_per_second, found.reward_mean) == (None, None, None, 0.5)
    assert (found.history[0].loss, found.history[0].reward_mean) == (None, 0.25)
    ended = termination.decode(msgspec.json.encode({"reason": "Finished", "message": "", "progress": wild}).decode())
    assert ended is not None
    assert ended.progress == found


def test_texts_that_would_fill_a_status_are_left_out() -> None:
    long = "x" * 5000
    wild = {"state": "training", "step": 3, "totalSteps": 9, "wandbUrl": long, "checkpoint": {"step": 1, "path": long}}
    found = progress.decode(msgspec.json.encode(wild | {"engine": long}))
    assert (found.wandb_url, found.checkpoint, found.engine) == (None, None, "")
    with pytest.raises(msgspec.ValidationError):
        exports.decode(msgspec.json.encode({"state": "writing", "artifact": long}))


def test_negative_step_in_a_termination_message_is_refused() -> None:
    assert termination.decode('{"reason": "Finished", "message": "", "step": -1}') is None
