"""The Python client: the namespace of the command line, as objects for scripts and notebooks."""

from clotho.client.client import Client
from clotho.client.errors import ClothoError
from clotho.client.run import Run

__all__ = ["Client", "ClothoError", "Run"]
