"""How the GPU's memory is divided between weights, optimiser, key-value cache and activations. Pure."""

from dataclasses import dataclass

OPTIMIZER_BYTES = 12  # of a trained parameter: a gradient and two moments in float32
_CACHE_SHARE = 0.4  # of what weights and optimiser leave; training needs the rest for activations
_SERVING_CACHE_SHARE = 0.8  # where nothing is trained
_GIB = 2**30


@dataclass(frozen=True)
class Budget:
    total: int
    used: int  # by the weights and whatever else is allocated already
    optimizer: int
    cache: int
    blocks: int
    block_size: int

    @property
    def activations(self) -> int:
        return self.total - self.used - self.optimizer - self.cache

    def __str__(self) -> str:
        parts = {
            "weights": self.used,
            "optimiser": self.optimizer,
            f"key-value cache of {self.blocks * self.block_size} tokens": self.cache,
            "activations": self.activations,
        }
        return f"{self.total / _GIB:.1f} GiB: " + ", ".join(f"{size / _GIB:.1f} {name}" for name, size in parts.items())


def divide(
    *, total: int, used: int, trainable: int, bytes_per_token: int, rows: int, tokens_a_row: int, block_size: int
) -> Budget:
    """As many blocks as full batches can ever need, if they fit; at least enough for one sequence."""
    optimizer = trainable * OPTIMIZER_BYTES
    blocks_a_row = -(-tokens_a_row // block_size)
    block_bytes = block_size * bytes_per_token
    share = _CACHE_SHARE if trainable else _SERVING_CACHE_SHARE
    affordable = int(max(total - used - optimizer, 0) * share) // block_bytes
    blocks = max(min(rows * blocks_a_row, affordable), blocks_a_row) + 1
    return Budget(total, used, optimizer, blocks * block_bytes, blocks, block_size)
