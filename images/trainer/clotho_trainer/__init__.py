"""The trainer of a run: it takes scored groups, moves the policy, and serves the very weights it is training."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clotho_trainer.library import TrainingResult as TrainingResult
    from clotho_trainer.library import train as train

__all__ = ["TrainingResult", "train"]


def __getattr__(name: str) -> Any:
    """`from clotho_trainer import train`, while commands that train nothing load nothing heavy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from clotho_trainer import library

    return getattr(library, name)
