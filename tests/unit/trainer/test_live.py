"""Training and decoding take turns on one set of weights."""

import threading

import torch

from clotho_trainer.model.live import LiveWeights


class Model(torch.nn.Module):
    device = torch.device("cpu")
    dtype = torch.float32


def test_training_has_priority_and_excludes_decoding() -> None:
    live = LiveWeights(Model(), tokenizer=None)
    order: list[str] = []

    def train() -> None:
        with live.training():
            assert live.model.training
            order.append("training")
            live.version += 1

    def decode() -> None:
        with live.decoding():
            assert not live.model.training
            order.append(f"decoding {live.version}")

    with live.decoding():
        trainer = threading.Thread(target=train)
        trainer.start()
        while not live.training_is_waiting:
            pass
        decoder = threading.Thread(target=decode)
        decoder.start()
        order.append("held")
    trainer.join(timeout=10)
    decoder.join(timeout=10)
    assert order == ["held", "training", "decoding 1"]


def test_no_turn_of_decoding_begins_while_training_is_expected() -> None:
    live = LiveWeights(Model(), tokenizer=None)
    order: list[str] = []

    def decode() -> None:
        with live.decoding():
            order.append("decoding")

    with live.training_expected():
        assert live.training_is_waiting
        decoder = threading.Thread(target=decode)
        decoder.start()
        with live.training():
            order.append("training")
        assert live.training_is_waiting
        decoder.join(timeout=0.05)
        order.append("expected")
    decoder.join(timeout=10)
    assert order == ["training", "expected", "decoding"]
    assert not live.training_is_waiting


def test_a_failed_step_releases_the_weights() -> None:
    live = LiveWeights(Model(), tokenizer=None)
    try:
        with live.training():
            raise RuntimeError("out of memory")
    except RuntimeError:
        pass
    with live.decoding():
        assert torch.is_inference_mode_enabled()
