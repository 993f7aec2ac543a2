"""The JSON of the API server: Atropos' trajectory protocol and the leased batches on top of it."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from clotho_contract.history import MOST_EVALUATED, Evaluation
from clotho_contract.progress import LONGEST_NAME, Count

EVALUATIONS_PATH: Final = "/evaluations"
PROTOCOL_HEADER: Final = "X-Clotho-Protocol"  # a client that sends it understands 429 and Retry-After
PROTOCOL_HEADERS: Final[Mapping[str, str]] = {PROTOCOL_HEADER: "1"}
IDEMPOTENCY_HEADER: Final = "Idempotency-Key"  # identifies the groups of a request, which may then be sent again
LONGEST_IDEMPOTENCY_KEY: Final = 255

INT64: Final = 2**63 - 1
Int = Annotated[int, Meta(ge=-INT64 - 1, le=INT64)]
Step = Annotated[int, Meta(ge=0, le=INT64)]
Name = Annotated[str, Meta(max_length=512)]
Path = Annotated[str, Meta(max_length=4096)]


class Register(Struct, frozen=True):
    """Registers a trainer. `starting_step` is the step of the checkpoint it starts from."""

    wandb_group: Name
    wandb_project: Name
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000, description="Sequences in a batch.")]
    max_token_len: Annotated[Int, Meta(description="Longest sequence accepted; 0 or less accepts any.")]
    checkpoint_dir: Path
    save_checkpoint_interval: Int
    starting_step: Step
    num_steps: Int
    discards_state: Annotated[
        bool, Meta(description="The server's state is older than the trainer's: what is queued is deleted.")
    ] = False


class Registered(Struct, frozen=True):
    uuid: int


class RegisterEnv(Struct, frozen=True):
    max_token_length: Annotated[int, Meta(ge=0, le=INT64)]
    desired_name: Name
    weight: Annotated[float, Meta(ge=0, le=1e9)]
    group_size: Annotated[int, Meta(ge=1, le=1_000_000, description="Sequences in a group; divides the batch size.")]
    min_batch_allocation: Annotated[float, Meta(ge=0, le=1)] | None = None


class EnvRegistered(Struct, frozen=True):
    env_id: int
    wandb_name: str
    checkpoint_dir: str
    starting_step: int
    checkpoint_interval: int
    num_steps: int
    status: str = "success"


class EnvRegistration(Struct, frozen=True):
    """What a client reads of the answer to `/register-env`: without an id, the trainer has not started yet."""

    env_id: int | None = None
    status: str = ""


class EnvIdentifier(Struct, frozen=True):
    env_id: Step


class EnvStatus(Struct, frozen=True):
    current_step: int
    queue_size: int
    unallocated_fraction: float
    self_queue_size: int
    max_group_size: int
    env_weight: float


class Info(Struct, frozen=True):
    """-1 in both until a trainer registers."""

    batch_size: int
    max_token_len: int = -1


class LeaseRequest(Struct, frozen=True):
    wait_seconds: Annotated[float, Meta(ge=0, le=60, description="How long to wait for a batch.")] = 0.0


class LeasedBatch(Struct, frozen=True):
    lease_id: str
    expires_in: float  # seconds until the batch is delivered again, unless the lease is renewed
    batch: list[Raw]  # scored groups, left for the trainer to decode one by one
    step: int | None = None  # older servers do not send it


class AtStep(Struct, frozen=True):
    step: Step


class Renewed(Struct, frozen=True):
    expires_in: float


class CurrentStep(Struct, frozen=True):
    current_step: int


MOST_LISTED: Final = 100


class ConnectedEnvironment(Struct, frozen=True, kw_only=True):
    """Defaults, so that the operator can read the status of a server with fewer fields."""

    id: int = 0
    name: str = ""
    seconds_since_heard: float = 0.0
    queued_groups: int = 0


class ApiStatus(Struct, frozen=True, kw_only=True):
    """`/status`: Atropos' two fields, and what the operator reads. Unknown fields are ignored."""

    current_step: int
    queue_size: int  # groups that wait for the trainer
    queue_bytes: int = 0
    queue_sequences: int = 0
    full: bool = False  # the queue is full; environments are asked to slow down
    registered: bool = False  # a trainer has registered
    leased_batches: int = 0
    last_lease_time: str | None = None  # RFC 3339; since the server started
    environments_connected: int = 0
    environments: tuple[ConnectedEnvironment, ...] = ()  # the first MOST_LISTED of them
    storage_problem: str = ""  # why groups are refused although the queue is not full
    state_lost: str = ""  # what this server found when it started and could not use

    @property
    def connected_count(self) -> int:
        """Older servers list all environments and do not count them."""
        return max(self.environments_connected, len(self.environments))


class NewEvaluation(Struct, frozen=True):
    """`POST /evaluations`: what an environment's evaluation returned."""

    environment: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
    figures: Annotated[
        dict[Annotated[str, Meta(max_length=LONGEST_NAME)], float], Meta(min_length=1, max_length=MOST_EVALUATED)
    ]
    step: Annotated[Count | None, Meta(description="Of the policy; absent: the run's current step.")] = None


class Evaluations(Struct, frozen=True):
    """`GET /evaluations`: the newest, oldest first."""

    evaluations: tuple[Evaluation, ...] = ()


class _Problem(Struct):
    msg: str
    loc: tuple[str | int, ...] = ()


class _Refusal(Struct):
    detail: str | list[_Problem]


def refusal_detail(body: bytes) -> str:
    """The reason in an error answer of FastAPI's shape: a sentence, or a list of problems with one each."""
    try:
        detail = msgspec.json.decode(body, type=_Refusal).detail
    except (msgspec.MsgspecError, RecursionError):
        return body[:300].decode(errors="replace")
    return detail if isinstance(detail, str) else "; ".join(problem.msg for problem in detail)


def refused_fields(body: bytes) -> frozenset[str | int]:
    """The fields that an error answer of FastAPI's shape names."""
    try:
        detail = msgspec.json.decode(body, type=_Refusal).detail
    except (msgspec.MsgspecError, RecursionError):
        return frozenset()
    return frozenset() if isinstance(detail, str) else frozenset(part for problem in detail for part in problem.loc)
