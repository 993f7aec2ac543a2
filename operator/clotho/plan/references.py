"""Objects that a run or a test names and that others make: looked up before a pod is made, since a pod that waits for
one of them on its node holds its GPUs meanwhile."""

from typing import Final

from clotho.plan.model import Reference
from clotho.plan.wording import full_stop
from clotho_contract.nearest import nearest

LOOK_AGAIN_SECONDS: Final = 10  # none of them is watched
WAITING_FOR_REFERENCES: Final = "WaitingForReferences"  # the reason of the conditions


def absence(missing: tuple[Reference, ...]) -> str:
    listed = ", ".join(f"{_title(each)} ({each.field})" for each in missing)
    guesses = "".join(nearest(each.file, each.files) for each in missing if each.file)
    where = "cluster" if any(each.kind == "StorageClass" for each in missing) else "namespace"
    verb = "it does" if len(missing) == 1 else "they do"
    return full_stop(f"Waiting for {listed}: {verb} not exist in this {where}{guesses}")


def _title(reference: Reference) -> str:
    owner = f"{reference.kind} {reference.name}"
    return f"file {reference.file} of {owner}" if reference.file else owner
