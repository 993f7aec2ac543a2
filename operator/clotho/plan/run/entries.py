"""Entries that no environment image has: refused before a pod is made."""

from collections.abc import Iterator

from clotho.api.training_run import TrainingRunSpec
from clotho_contract.entries import BUILTIN, FORMS, LIBRARIES, is_entry
from clotho_contract.nearest import nearest


def entry_problems(spec: TrainingRunSpec, catalogue: tuple[str, ...]) -> Iterator[str]:
    """Of environments that run in the operator's own image; another image may run anything."""
    for each in spec.environments:
        entry = each.entry or each.name
        if each.environment_name or each.image or each.template or is_entry(entry):
            continue
        where = f"environments.{each.name}.{'entry' if each.entry else 'name'}: {entry} is not an entry"
        if entry in catalogue:
            yield f"{where}; to use the Environment of that name, set environmentName: {entry}"
        else:
            yield f"{where}{nearest(entry, (*BUILTIN, *LIBRARIES, *catalogue)) or ';'} use {FORMS}"
