"""Whose an object is, and whether it has the labels and the owner by which it is found, selected and deleted."""

from collections.abc import Iterable, Mapping
from typing import Any

from clotho.api.metadata import Metadata
from clotho.api.names import ATTEMPT_LABEL, RESTARTS_LABEL, UID_LABEL

Manifest = dict[str, Any]


def is_owned_by(found: Metadata, owner: Metadata) -> bool:
    """By the owner reference; where that was removed, by the label."""
    if found.owner_references:
        return any(reference.uid == owner.uid for reference in found.owner_references)
    return found.labels.get(UID_LABEL) == owner.uid


def owner_in_words(found: Metadata) -> str:
    """Of an object that is another's."""
    if found.owner_references:
        first = found.owner_references[0]
        return f"belongs to {first.kind} {first.name}"
    return f"has neither an owner nor the label {UID_LABEL} that it would have"


def is_marked(labels: Mapping[str, str], owner_uids: Iterable[str], rendered: Manifest) -> bool:
    """Whether an object has the labels and the owner of this metadata."""
    owners = {owner["uid"] for owner in rendered.get("ownerReferences", ())}
    return rendered["labels"].items() <= labels.items() and owners <= set(owner_uids)


def lost_marks(found: Manifest, rendered: Manifest) -> Manifest:
    """What a merge patch of the metadata has to put back. Counters in labels are the object's own."""
    labels, owners = found.get("labels") or {}, found.get("ownerReferences") or []
    lost = {
        name: value
        for name, value in rendered["labels"].items()
        if name not in labels or (labels[name] != value and name not in (ATTEMPT_LABEL, RESTARTS_LABEL))
    }
    known = {owner["uid"] for owner in owners}
    lost_owners = [owner for owner in rendered.get("ownerReferences", ()) if owner["uid"] not in known]
    change = {"labels": lost, "ownerReferences": [*owners, *lost_owners] if lost_owners else []}
    return {name: value for name, value in change.items() if value}
