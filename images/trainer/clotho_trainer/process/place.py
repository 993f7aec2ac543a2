"""Which of the run's ranks this process is."""

import hashlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from clotho_contract import ranks
from clotho_contract.names import TERMINATION_MESSAGE_VARIABLE
from clotho_trainer.failures import TrainerError

_LOCAL_RANK = "LOCAL_RANK"  # torchrun sets it for the processes that it starts
# Read by Accelerate and transformers, which would then communicate on their own, in the middle of a micro-batch.
_DISTRIBUTED = (_LOCAL_RANK, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
_DISTRIBUTED_PREFIXES = ("ROLE_", "MASTER_", "TORCHELASTIC_")
_PACKAGES = ("torch", "transformers", "trl", "peft")


@dataclass(frozen=True)
class Place:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    ranks_per_node: int = 1
    host: str = ""  # of rank 0
    port: int = ranks.RENDEZVOUS_PORT
    is_launched: bool = False  # by torchrun

    @property
    def must_launch(self) -> bool:
        """Whether this is the pod's first process, which starts its ranks."""
        return self.ranks_per_node > 1 and not self.is_launched


ALONE = Place()


def take_place(environment: MutableMapping[str, str]) -> Place:
    """From the variables of the pod and of torchrun; those that libraries act on are removed."""
    place = _place(environment)
    if place.is_launched and TERMINATION_MESSAGE_VARIABLE in environment:
        environment[TERMINATION_MESSAGE_VARIABLE] += f"-{place.local_rank}"  # of several processes in one pod
    for name in list(environment):
        if name in _DISTRIBUTED or name.startswith(_DISTRIBUTED_PREFIXES):
            del environment[name]
    return place


def _place(environment: Mapping[str, str]) -> Place:
    nodes = _number(environment, ranks.NODES_VARIABLE, 1)
    per_node = _number(environment, ranks.RANKS_PER_NODE_VARIABLE, 1)
    local_rank = _number(environment, _LOCAL_RANK, 0)
    place = Place(
        rank=_number(environment, ranks.NODE_RANK_VARIABLE, 0) * per_node + local_rank,
        size=nodes * per_node,
        local_rank=local_rank,
        ranks_per_node=per_node,
        host=environment.get(ranks.RENDEZVOUS_HOST_VARIABLE, "127.0.0.1" if nodes == 1 else ""),
        port=_number(environment, ranks.RENDEZVOUS_PORT_VARIABLE, ranks.RENDEZVOUS_PORT),
        is_launched=_LOCAL_RANK in environment,
    )
    if place.rank >= place.size or not place.host:
        variables = f"${ranks.NODE_RANK_VARIABLE}, ${ranks.NODES_VARIABLE} and ${ranks.RENDEZVOUS_HOST_VARIABLE}"
        raise TrainerError("InvalidConfig", f"{variables} do not give a rank below {place.size} and the host of rank 0")
    return place


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal():
        raise TrainerError("InvalidConfig", f"${name} is {text!r}, not a number")
    return int(text)


def names(urls: tuple[str, ...], size: int) -> tuple[str, ...]:
    """Every rank with its host, where the config has it."""
    hosts = [urlsplit(url).hostname or "" for url in urls] if len(urls) == size else [""] * size
    return tuple(f"rank {rank} ({host})" if host else f"rank {rank}" for rank, host in enumerate(hosts))


def software() -> str:
    """What the ranks of a team must have in common: the code itself, as a tag may be pulled twice and differ."""
    code = hashlib.sha256()
    for package in (Path(ranks.__file__).parent, Path(__file__).parents[1]):
        for file in sorted(package.rglob("*.py")):
            code.update(file.read_bytes())
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"code {code.hexdigest()[:12]}, {packages}"
