"""The JSON of Atropos' trajectory protocol and of the leased batches on top of it."""

import re
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from clotho_api_server.refusals import InvalidError, Location

INT64 = 2**63 - 1
LONGEST_KEY = 255
Int = Annotated[int, Meta(ge=-INT64 - 1, le=INT64)]
Step = Annotated[int, Meta(ge=0, le=INT64)]
Name = Annotated[str, Meta(max_length=512)]
Path = Annotated[str, Meta(max_length=4096)]


class Register(Struct, frozen=True):
    """A trainer introduces itself. `starting_step` is the step of the checkpoint it starts from."""

    wandb_group: Name
    wandb_project: Name
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000, description="Sequences in a batch.")]
    max_token_len: Annotated[Int, Meta(description="Longest sequence accepted; 0 or less accepts any.")]
    checkpoint_dir: Path
    save_checkpoint_interval: Int
    starting_step: Step
    num_steps: Int


class RegisterEnv(Struct, frozen=True):
    max_token_length: Annotated[int, Meta(ge=0, le=INT64)]
    desired_name: Name
    weight: Annotated[float, Meta(ge=0, le=1e9)]
    group_size: Annotated[int, Meta(ge=1, le=1_000_000, description="Sequences in a group; divides the batch size.")]
    min_batch_allocation: Annotated[float, Meta(ge=0, le=1)] | None = None


class EnvIdentifier(Struct, frozen=True):
    env_id: Step


class LeaseRequest(Struct, frozen=True):
    wait_seconds: Annotated[float, Meta(ge=0, le=60, description="How long to wait for a batch.")] = 0.0


class AtStep(Struct, frozen=True):
    step: Step


class Registered(Struct, frozen=True):
    uuid: int


class EnvRegistered(Struct, frozen=True):
    env_id: int
    wandb_name: str
    checkpoint_dir: str
    starting_step: int
    checkpoint_interval: int
    num_steps: int
    status: str = "success"


class EnvStatus(Struct, frozen=True):
    current_step: int
    queue_size: int
    unallocated_fraction: float
    self_queue_size: int
    max_group_size: int
    env_weight: float


class Renewed(Struct, frozen=True):
    expires_in: float


class CurrentStep(Struct, frozen=True):
    current_step: int


T = TypeVar("T")


def decode(body: bytes | Raw, decoder: Decoder[T], at: Location = ()) -> T:
    """Decode one JSON value; an error names the field and the index inside it."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error, at) from error


def invalid(error: Exception, at: Location = ()) -> InvalidError:
    """msgspec ends its messages with a path such as `$.overrides[2]`; ours start with the whole path."""
    problem, _, path = str(error).partition(" - at `$")
    if isinstance(error, RecursionError):
        problem = "nested too deeply"
    elif problem == "Number out of range":
        problem = "not a finite number"
    return InvalidError((*at, *_path_parts(path)), problem[:1].lower() + problem[1:])


def _path_parts(path: str) -> Location:
    parts = re.findall(r"\[(\d+)\]|\.([^.\[`]+)", path)
    return tuple(int(index) if index else name for index, name in parts)
