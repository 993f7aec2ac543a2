"""The control plane: TrainingRuns in, pods and an honest status out. For people: `from clotho import Client`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clotho.client import Client as Client
    from clotho.client import ClothoError as ClothoError

__all__ = ["Client", "ClothoError"]


def __getattr__(name: str) -> Any:
    """Imported on first use: the operator and the command line start without the client."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from clotho import client

    return getattr(client, name)
