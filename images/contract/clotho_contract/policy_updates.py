"""How inference replicas follow the policy: a long poll of the trainer's policy port.

`GET /policy?after=<version>&attempt=<attempt>` names what the replica has. The answer is 200 with the trained
parameters as safetensors as soon as the trainer has others, and 204 when it can send none within HOLD_SECONDS. Both
carry the attempt and, in POLICY_VERSION_HEADER, a version: of the parameters, or the trainer's newest.

`POST /load?replica=<index>` has a replica's Load, every LOAD_SECONDS while it is ready.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

POLICY_PATH: Final = "/policy"
AFTER: Final = "after"
ATTEMPT: Final = "attempt"

ATTEMPT_HEADER: Final = "X-Clotho-Policy-Attempt"  # another one after each start of the trainer: versions may go back
DIGEST_HEADER: Final = "X-Clotho-Policy-Digest"  # XXH3 of the body, 128 bits in hexadecimal digits
HOLD_SECONDS: Final = 20.0

LOAD_PATH: Final = "/load"
REPLICA: Final = "replica"
LOAD_SECONDS: Final = 2.0
LOAD_VALID_SECONDS: Final = 10.0  # a replica that is silent for longer does not serve

_Count = Annotated[int, Meta(ge=0, le=2**31)]


class Load(Struct, frozen=True):
    """How busy an engine is."""

    sequences: _Count  # samples that are asked for and not complete
    rows: _Count  # how many it decodes together
