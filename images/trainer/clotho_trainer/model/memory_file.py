"""A file in the host's memory, by which the policy travels: the trainer copies it there once and sends it as it is, and
a replica receives it where vLLM reads it."""

import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import torch


class MemoryFile:
    """Kept from version to version, so that its pages are allocated, and pinned for a GPU, once. Nothing has to delete
    it: it ends with the process."""

    def __init__(self, size: int, *, is_pinned: bool = False) -> None:
        descriptor = os.memfd_create("policy")
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size)
        self.size = size
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        mapped = mmap.mmap(descriptor, size)
        self.view, self.tensor = memoryview(mapped), torch.frombuffer(mapped, dtype=torch.uint8)
        if is_pinned:
            self._pin()

    def _pin(self) -> None:
        """Where that is refused, copies take longer and nothing else."""
        driver: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = self.tensor.data_ptr()
        if int(driver.cudaHostRegister(address, self.size, 0)) == 0:
            weakref.finalize(self, driver.cudaHostUnregister, address)


def sized(file: MemoryFile | None, size: int, *, is_pinned: bool = False) -> MemoryFile:
    """The same file where it has that size."""
    return file if file is not None and file.size == size else MemoryFile(size, is_pinned=is_pinned)
