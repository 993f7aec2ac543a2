"""The ranks of a trainer: one process for each GPU, or one for each pod without GPUs, and where each of them serves.

Rank 0 is the first process of pod 0. Ranks are numbered pod by pod, as torchrun numbers them.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from clotho_contract.names import INFERENCE_PORT

RENDEZVOUS_PORT: Final = 29500
_FIRST_EXTRA_PORT: Final = 8100

# torchrun reads these itself; they are set for every trainer pod of a run with more than one rank.
NODES_VARIABLE: Final = "PET_NNODES"
RANKS_PER_NODE_VARIABLE: Final = "PET_NPROC_PER_NODE"
NODE_RANK_VARIABLE: Final = "PET_NODE_RANK"
RENDEZVOUS_HOST_VARIABLE: Final = "PET_MASTER_ADDR"
RENDEZVOUS_PORT_VARIABLE: Final = "PET_MASTER_PORT"


class Topology(Struct, frozen=True):
    nodes: int = 1  # trainer pods
    ranks_per_node: int = 1

    @classmethod
    def of(cls, replicas: int, gpus: int) -> "Topology":
        return cls(nodes=replicas, ranks_per_node=max(gpus, 1))

    @property
    def size(self) -> int:
        return self.nodes * self.ranks_per_node

    def inference_urls(self, host_of: Callable[[int], str]) -> tuple[str, ...]:
        """The base URL of every rank's inference server, by rank; `host_of` names the host of a pod."""
        return tuple(
            f"http://{host_of(node)}:{inference_port(local_rank)}"
            for node in range(self.nodes)
            for local_rank in range(self.ranks_per_node)
        )


def inference_port(local_rank: int) -> int:
    """Ranks of one pod share its address; the first keeps the port of a trainer that is alone."""
    return _FIRST_EXTRA_PORT + local_rank if local_rank else INFERENCE_PORT
