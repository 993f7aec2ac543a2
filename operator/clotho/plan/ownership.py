"""Whose an object is, and whether it has the labels and the owner by which it is found, selected and deleted."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from clotho.api.metadata import Metadata, OwnerReference
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


def is_marked(labels: Mapping[str, str], owners: Iterable[OwnerReference], rendered: Manifest) -> bool:
    """Whether an object has the labels and the owner of this metadata."""
    return rendered["labels"].items() <= labels.items() and set(owners_in(rendered)) <= set(owners)


def lost_marks(found: Manifest, rendered: Manifest) -> Manifest:
    """What a merge patch of the metadata has to put back. Counters in labels are the object's own."""
    labels = found.get("labels") or {}
    lost = {
        name: value
        for name, value in rendered["labels"].items()
        if name not in labels or (labels[name] != value and name not in (ATTEMPT_LABEL, RESTARTS_LABEL))
    }
    has_owner = set(owners_in(rendered)) <= set(owners_in(found))
    change = {"labels": lost, "ownerReferences": [] if has_owner else _merged(found, rendered)}
    return {name: value for name, value in change.items() if value}


def owners_in(metadata: Manifest) -> tuple[OwnerReference, ...]:
    return msgspec.convert(metadata.get("ownerReferences") or (), tuple[OwnerReference, ...])


def _merged(found: Manifest, rendered: Manifest) -> list[Manifest]:
    """Other owners stay; a reference to ours that was edited is replaced."""
    ours = {each["uid"] for each in rendered["ownerReferences"]}
    others = [each for each in found.get("ownerReferences") or () if each["uid"] not in ours]
    return [*others, *rendered["ownerReferences"]]
