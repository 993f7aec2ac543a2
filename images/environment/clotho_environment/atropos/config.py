"""The YAML that Atropos' own command line reads. It holds no secret: the gateway adds the token on the way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from clotho_contract.config import EnvironmentConfig, RunConfig

SERVER_TIMEOUT_SECONDS = 3600
INFRASTRUCTURE: Final = frozenset(
    {
        "rollout_server_url",
        "tokenizer_name",
        "total_steps",
        "max_batches_offpolicy",
        "inference_weight",
        "min_batch_allocation",
        "wandb_name",
    }
)
"""Fields that the run sets; values in the environment's config have no effect there."""


def render_serve(
    run: RunConfig, place: EnvironmentConfig, *, api_server: str, inference: str, tokenizer: Path
) -> dict[str, Any]:
    """The fields of the environment's config, then those that the run sets."""
    infrastructure: dict[str, Any] = {
        "rollout_server_url": api_server,
        "tokenizer_name": str(tokenizer),
        "total_steps": run.training.steps,
        "max_batches_offpolicy": run.training.max_off_policy_batches,
        "inference_weight": place.weight,
        "wandb_name": place.name,  # without a name registration fails
    }
    if place.min_batch_allocation is not None:  # some environments allow no null there
        infrastructure["min_batch_allocation"] = place.min_batch_allocation
    defaults = {"use_wandb": False, "max_token_length": run.training.max_tokens}
    own = {name: value for name, value in place.config.items() if name not in INFRASTRUCTURE}
    return {
        "env": defaults | own | infrastructure,
        "openai": _servers(inference, run.model.name, "sglang", tokenizer),
    }


def render_process(
    config: Mapping[str, Any],
    *,
    inference: str,
    model: str,
    has_tokens: bool,
    groups: int,
    output: Path,
    tokenizer: Path | None,
) -> dict[str, Any]:
    found = {"tokenizer_name": str(tokenizer)} if tokenizer else {}
    asked = {"use_wandb": False, "total_steps": groups, "data_path_to_save_groups": str(output)}
    return {
        "env": found | dict(config) | asked,
        "openai": _servers(inference, model, "sglang" if has_tokens else "openai", tokenizer),
    }


def to_yaml(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False)


def _servers(base_url: str, model: str, server_type: str, tokenizer: Path | None) -> list[dict[str, Any]]:
    """The same server twice: given once, Atropos ignores its address for environments with a bare default config."""
    server = {
        "base_url": base_url + "/v1",
        "model_name": model,
        "server_type": server_type,
        "api_key": "kept-by-the-gateway",
        "timeout": SERVER_TIMEOUT_SECONDS,
        "num_requests_for_eval": 256,
        "health_check": False,  # the gateway holds requests while the server is down
    }
    if tokenizer:
        server["tokenizer_name"] = str(tokenizer)
    return [server, dict(server)]
