"""Config fields of Atropos environments that the run writes, and what it writes there.

A test holds them against what the environment's image does.
"""

from collections.abc import Mapping
from typing import Final

ATROPOS_ENTRY: Final = "atropos:"
DECIDED_BY: Final[Mapping[str, str]] = {
    "total_steps": "training.steps",
    "tokenizer_name": "model.name",
    "max_batches_offpolicy": "training.maxOffPolicyBatches",
    "wandb_name": "environments[].name",
    "inference_weight": "environments[].weight",
    "min_batch_allocation": "environments[].minBatchAllocation",
    "rollout_server_url": "the address of its API server",  # known once it is there
}
"""These cannot be set: the setting of the run that decides them."""
DEFAULT_FROM: Final[Mapping[str, str]] = {"max_token_length": "training.maxTokens"}
"""What a config leaves out comes from there, not from the environment's own default."""
