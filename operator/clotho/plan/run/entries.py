"""Entries that no environment image has: refused before a pod is made."""

from collections.abc import Iterator

from clotho.api.training_run import EnvironmentSpec, TrainingRunSpec
from clotho.render.merge import has_containers
from clotho_contract.entries import BUILTIN, FORMS, LIBRARIES, REASONING_GYM, is_entry, task_problem
from clotho_contract.nearest import nearest
from clotho_contract.reasoning_gym_tasks import TASKS


def entry_problems(spec: TrainingRunSpec, catalogue: tuple[str, ...]) -> Iterator[str]:
    """Of environments that run in the operator's own image; another image may run anything."""
    for each in spec.environments:
        if each.environment_name or each.image or has_containers(each.template):
            continue
        where = f"environments.{each.name}.{'entry' if each.entry else 'name'}"
        if problem := _entry_problem(each, catalogue):
            yield f"{where}: {problem}"


def _entry_problem(environment: EnvironmentSpec, catalogue: tuple[str, ...]) -> str:
    entry = environment.entry or environment.name
    library, _, task = entry.partition(":")
    if is_entry(entry):
        has_own_packages = bool(environment.requirements)  # another reasoning-gym, perhaps
        return task_problem(task, TASKS) if library == REASONING_GYM and not has_own_packages else ""
    if entry in catalogue:
        return f"{entry} is not an entry; to use the Environment of that name, set environmentName: {entry}"
    return f"{entry} is not an entry{nearest(entry, (*BUILTIN, *LIBRARIES, *catalogue)) or ';'} use {FORMS}"
