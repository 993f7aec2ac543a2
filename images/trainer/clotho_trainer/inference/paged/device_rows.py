"""The rows that are decoded, as the device holds them."""

from collections.abc import Sequence as Many

import torch

from clotho_trainer.inference.core.block_manager import NULL_BLOCK
from clotho_trainer.inference.core.sequences import Sequence


class DeviceRows:
    """Tensors that stay where they are: CUDA graphs keep the addresses. What a step samples is the input of the next
    one, so that steps follow each other without the host."""

    def __init__(self, max_rows: int, columns: int, steps: int, device: torch.device) -> None:
        """`columns`: blocks of a row. `steps`: at most, before the host collects what was drawn."""
        self.tokens, self.positions, self.cached, self.last, self.seeds = torch.zeros(
            5, max_rows, dtype=torch.int64, device=device
        )
        self.temperatures = torch.ones(max_rows, device=device)
        self.tables = torch.full((max_rows, columns), NULL_BLOCK, dtype=torch.int32, device=device)
        self.drawn = torch.zeros(steps, max_rows, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(steps, max_rows, device=device)
        self.taken = torch.zeros(1, dtype=torch.int64, device=device)  # steps since the host collected

    def clear(self) -> None:
        """What is written next goes to the block that has no owner."""
        self.tables.fill_(NULL_BLOCK)
        self.positions.zero_()
        self.taken.zero_()

    def load(self, rows: Many[Sequence], size: int) -> None:
        """These rows from now on, filled up to `size`; the host holds all of their state."""
        idle = [0] * (size - len(rows))
        for target, values in (
            (self.tokens, [row.last_token for row in rows]),
            (self.positions, [row.position for row in rows]),
            (self.cached, [row.cached for row in rows]),
            (self.last, [row.last_position for row in rows]),
            (self.seeds, [row.seed for row in rows]),
        ):
            target[:size] = torch.tensor([*values, *idle], dtype=torch.int64)
        self.temperatures[:size] = torch.tensor([row.request.sampling.temperature for row in rows] + [1.0] * len(idle))
        self.load_tables(rows, size)

    def load_tables(self, rows: Many[Sequence], size: int) -> None:
        """Only the blocks of the rows have changed. It waits for nothing that was launched."""
        columns = max(len(row.blocks) for row in rows)
        tables = [[*row.blocks, *[NULL_BLOCK] * (columns - len(row.blocks))] for row in rows]
        tables += [[NULL_BLOCK] * columns] * (size - len(rows))
        staged = torch.tensor(tables, dtype=torch.int32, pin_memory=self.tables.is_cuda)
        self.tables[:size, :columns].copy_(staged, non_blocking=True)
