"""The one set of weights: training changes them, decoding reads them, and never both at once."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from clotho_trainer.model.architecture import is_saved_as_named
from clotho_trainer.model.lora import Undo, lean

Mode = Literal["training", "decoding"]


class LiveWeights:
    """Turns are taken between decode steps; training goes first when both wait."""

    def __init__(self, model: Any, tokenizer: Any, version: int = 0) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.modules_decode = True  # False: decoding leaves the model's modules alone
        self.version = version  # optimiser steps in the weights; changes only inside `training()`
        self.lineage = 0  # another number once versions were counted anew, from an older checkpoint
        self.whole: Mapping[str, torch.Tensor] | None = None  # what is trained, where the model has only parts of it
        self.whole_file: Path | None = None  # the same as safetensors, where it came as such
        self._turn = threading.Condition()
        self._holder: Mode | None = None
        self._training_waits = 0
        self._mode: Mode | None = None
        self._undo_lean: Undo | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def compute_dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def stamp(self) -> tuple[int, int]:
        """Equal stamps have equal weights."""
        return self.lineage, self.version

    @property
    def bytes_to_hand_over(self) -> int:
        """How much `hand_over` writes."""
        if self._ready_file is not None:
            return 0
        tensors = self.model.parameters() if self.whole is None else self.whole.values()
        return sum(tensor.nbytes for tensor in tensors)

    @property
    def training_is_waiting(self) -> bool:
        return self._training_waits > 0

    def save_pretrained(self, folder: Path) -> None:
        """Inside `training()`. What is written is the same, sharded or not."""
        if self.whole is None:
            self.model.save_pretrained(folder, safe_serialization=True)
        else:
            self.model.save_pretrained(folder, safe_serialization=True, state_dict=dict(self.whole))

    def hand_over(self, folder: Path) -> None:
        """Inside `training()`: a checkpoint of the model, for another process to read before the next version."""
        if self._ready_file is None:
            self.save_pretrained(folder)
        else:
            (folder / "model.safetensors").symlink_to(self._ready_file)

    @property
    def _ready_file(self) -> Path | None:
        return self.whole_file if self.whole_file is not None and self._is_saved_as_named else None

    @cached_property
    def _is_saved_as_named(self) -> bool:
        return is_saved_as_named(self.model)

    @contextmanager
    def training(self) -> Iterator[None]:
        with self.training_expected(), self._turn:
            self._turn.wait_for(lambda: self._holder is None)
            self._holder = "training"
        with self._released():
            self._switch("training")
            yield

    @contextmanager
    def training_expected(self) -> Iterator[None]:
        """No turn of decoding begins, and the one that runs ends soon."""
        with self._turn:
            self._training_waits += 1
        try:
            yield
        finally:
            with self._turn:
                self._training_waits -= 1
                self._turn.notify_all()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: self._holder is None and not self._training_waits)
            self._holder = "decoding"
        with self._released():
            self._switch("decoding")
            with torch.inference_mode():
                yield

    @contextmanager
    def _released(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._turn:
                self._holder = None
                self._turn.notify_all()

    def _switch(self, mode: Mode) -> None:
        if mode == self._mode or (mode == "decoding" and not self.modules_decode):
            return
        self._mode = mode
        self.model.train(mode == "training")
        if self._undo_lean is not None:
            self._undo_lean()
        self._undo_lean = lean(self.model, self.compute_dtype) if mode == "decoding" else None
