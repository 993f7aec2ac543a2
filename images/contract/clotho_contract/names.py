"""Ports, paths and variable names that one side writes and another side reads."""

from pathlib import Path
from typing import Final

API_SERVER_PORT: Final = 8000
INFERENCE_PORT: Final = 8001
TRAINER_STATUS_PORT: Final = 8002
ENVIRONMENT_STATUS_PORT: Final = 8003
POLICY_PORT: Final = 8005  # of the trainer, for inference replicas alone

CONFIG_PATH: Final = Path("/etc/clotho/run.yaml")
DATA_PATH: Final = Path("/var/lib/clotho")  # the claim of the API server, and of the trainer: each has its own
DATASET_PATH: Final = Path("/dataset")  # where an inline run finds its prompts, and CODE_PATH its rewards and tools
CODE_PATH: Final = Path("/code")
TOKENIZER_PATH: Final = Path("/run/clotho/tokenizer")  # where an environment finds the policy's tokenizer
CACHE_PATH: Final = Path("/cache")  # an environment's downloads
TERMINATION_MESSAGE_PATH: Final = Path("/dev/termination-log")

CONFIG_VARIABLE: Final = "CLOTHO_CONFIG"
DATA_VARIABLE: Final = "CLOTHO_DATA"
CHECKPOINT_STEP_VARIABLE: Final = "CLOTHO_CHECKPOINT_STEP"  # of the last checkpoint that an earlier trainer reported
ENVIRONMENT_VARIABLE: Final = "CLOTHO_ENVIRONMENT"  # which entry of `environments` this pod is
CHECK_VARIABLE: Final = "CLOTHO_CHECK"  # set: `wait` checks the environment first; images that are older ignore it
TOKENIZER_VARIABLE: Final = "CLOTHO_TOKENIZER"  # the tokenizer's folder, where it is not TOKENIZER_PATH
REPLICA_VARIABLE: Final = "CLOTHO_REPLICA"  # which of several inference replicas a pod is, from 0
PACKAGES_VARIABLE: Final = "CLOTHO_PACKAGES"  # the folder of this pod's requirements
REQUIREMENTS_VARIABLE: Final = "CLOTHO_REQUIREMENTS"  # what is installed there, one line each
TOKEN_VARIABLE: Final = "CLOTHO_TOKEN"  # noqa: S105 - the token that a pod's own requests carry
# The tokens that a server accepts, one per role.
ENVIRONMENT_TOKEN_VARIABLE: Final = "CLOTHO_ENVIRONMENT_TOKEN"  # noqa: S105
TRAINER_TOKEN_VARIABLE: Final = "CLOTHO_TRAINER_TOKEN"  # noqa: S105
INFERENCE_TOKEN_VARIABLE: Final = "CLOTHO_INFERENCE_TOKEN"  # noqa: S105
OPERATOR_TOKEN_VARIABLE: Final = "CLOTHO_OPERATOR_TOKEN"  # noqa: S105
ADMIN_TOKEN_VARIABLE: Final = "CLOTHO_ADMIN_TOKEN"  # noqa: S105
TOKEN_VARIABLES: Final = (
    TOKEN_VARIABLE,
    ENVIRONMENT_TOKEN_VARIABLE,
    TRAINER_TOKEN_VARIABLE,
    INFERENCE_TOKEN_VARIABLE,
    OPERATOR_TOKEN_VARIABLE,
    ADMIN_TOKEN_VARIABLE,
)
TERMINATION_MESSAGE_VARIABLE: Final = "CLOTHO_TERMINATION_MESSAGE"

POLICY_VERSION_HEADER: Final = "X-Clotho-Policy-Version"
