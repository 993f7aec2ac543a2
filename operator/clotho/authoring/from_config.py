"""Another trainer's config file as the spec of a TrainingRun: translated by the contract, typed by the API."""

from collections.abc import Mapping
from typing import Any

import msgspec

from clotho.api.training_run import TrainingRunSpec
from clotho.authoring.mistakes import spell_out
from clotho_contract.config_file import ConfigFileError, Document, Translated, translate


def convert(document: Any) -> Translated:
    translated = translate(document)
    return msgspec.structs.replace(translated, spec=_typed(translated.spec, translated.origins))


def _typed(spec: Document, origins: Mapping[str, str]) -> Document:
    """Numbers that YAML reads as text (`1e-5`) become numbers; what cannot be right is named by its place."""
    try:
        typed = msgspec.convert(spec, TrainingRunSpec, strict=False)
    except msgspec.ValidationError as error:
        mistake = spell_out(error, spec, TrainingRunSpec)
        raise ConfigFileError([f"{origins.get(mistake.path, mistake.path)}: {mistake.problem}"]) from error
    return _only_given(msgspec.to_builtins(typed), spec)


def _only_given(typed: Document, given: Document) -> Document:
    """Defaults stay out: the manifest holds what the file holds."""
    return {
        name: _only_given(typed[name], value) if isinstance(value, dict) else typed[name]
        for name, value in given.items()
    }
