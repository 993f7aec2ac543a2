"""The README of a checkpoint: what it was made from and how, filled in for whoever gets the folder."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from clotho_contract.config import RunConfig
from clotho_contract.progress import HistorySample

FILE: Final = "README.md"
_UNKNOWN: Final = "not known here; see the base model's own card"
_SETTINGS: Final = ("batch_size", "max_tokens", "learning_rate", "scheduler", "seed")


def model_card(config: RunConfig, step: int, history: Sequence[HistorySample], licence: str) -> str:
    is_adapter = config.training.lora.rank > 0
    head = {
        "base_model": config.model.name,
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["clotho", "reinforcement-learning", config.training.loss.type, *(["lora"] if is_adapter else [])],
        **({"license": licence} if licence else {}),
    }
    what = f"LoRA adapter of rank {config.training.lora.rank} for" if is_adapter else "All weights of"
    rows = [
        ("base model", f"{config.model.name}, revision {config.model.revision}"),
        ("licence of the base", licence or _UNKNOWN),
        ("data", "; ".join(_data(config))),
        ("steps", f"{step} of {config.training.steps}"),
        *_settings(config),
    ]
    return "\n".join(
        [
            f"---\n{msgspec.yaml.encode(head).decode()}---",
            f"# {config.run.name}, step {step}",
            "",
            f"{what} `{config.model.name}`, trained with reinforcement learning by Clotho.",
            "`training_config.json` has every setting.",
            "",
            *_table(("", ""), rows),
            "",
            "## Reward",
            "",
            *_table(("step", "reward", "loss"), [_row(each) for each in history]),
            "",
        ]
    )


def _data(config: RunConfig) -> Iterator[str]:
    for each in config.environments:
        yield f"environment {each.name} (`{each.entry or each.name}`)"
    if config.inline is not None:
        dataset = config.inline.dataset
        yield f"dataset {dataset.hub}, split {dataset.split}" if dataset.hub else f"dataset {dataset.path}"


def _settings(config: RunConfig) -> Iterator[tuple[str, str]]:
    training = config.training
    yield "loss", f"{training.loss.type}, beta {training.loss.beta:g}"
    if training.lora.rank > 0:
        yield "LoRA", f"rank {training.lora.rank}, alpha {training.lora.alpha:g}, {training.lora.target_modules}"
    for name in _SETTINGS:
        yield name.replace("_", " "), str(getattr(training, name))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def _row(sample: HistorySample) -> tuple[str, ...]:
    return str(sample.step), _number(sample.reward_mean), _number(sample.loss)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
