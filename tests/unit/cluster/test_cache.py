"""Caches never return to an older state and never restore deleted objects."""

from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from clotho.api.metadata import Metadata
from clotho.cluster.cache import Cache, Key


class Thing(Struct, frozen=True):
    metadata: Metadata


def thing(version: int, name: str = "a", uid: str = "1", run: str = "r") -> Thing:
    return Thing(Metadata(name=name, namespace="ns", uid=uid, resource_version=str(version), labels={"run": run}))


def cache() -> Cache[Thing]:
    return Cache(lambda metadata: Key(metadata.namespace, metadata.labels["run"]))


RUN = Key("ns", "r")


def test_the_newer_state_wins_whatever_the_order() -> None:
    seen = cache()
    assert seen.observe(thing(10))
    assert not seen.observe(thing(9)), "a watch that lags behind our own write"
    assert not seen.observe(thing(10)), "the echo of our own write"
    assert seen.observe(thing(11))
    assert [t.metadata.resource_version for t in seen.belonging_to(RUN)] == ["11"]


def test_versions_are_numbers_not_texts() -> None:
    seen = cache()
    seen.observe(thing(9))
    assert seen.observe(thing(10))


def test_removal_is_final() -> None:
    seen = cache()
    seen.observe(thing(1))
    assert seen.remove(thing(2).metadata)
    assert not seen.observe(thing(1)), "the answer to a create that arrives after the deletion"
    assert list(seen.belonging_to(RUN)) == []
    assert len(seen) == 0


def test_object_that_left_the_selection_comes_back_with_a_newer_state() -> None:
    """A label was removed by hand, which a watch reports as a deletion, and put back."""
    seen = cache()
    seen.observe(thing(1))
    assert seen.remove(thing(5).metadata, at_version=5)
    assert not seen.observe(thing(4)), "a late answer"
    assert seen.observe(thing(5)), "it was read since, without the label"
    assert seen.observe(thing(6))
    assert [t.metadata.resource_version for t in seen.belonging_to(RUN)] == ["6"]


def test_answer_to_a_deletion_does_not_restore_what_the_watch_reported_gone() -> None:
    """The API server answers with the object as it was, at the version of its removal."""
    seen = cache()
    seen.observe(thing(276))
    assert seen.remove(thing(278).metadata, at_version=278)
    removed = msgspec.structs.replace(thing(278).metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    assert not seen.observe(Thing(removed))
    assert len(seen) == 0


def test_a_late_removal_leaves_the_successor_alone() -> None:
    seen = cache()
    seen.observe(thing(1, uid="old"))
    seen.observe(thing(5, uid="new"))
    assert not seen.remove(thing(2, uid="old").metadata)
    assert [t.metadata.uid for t in seen.belonging_to(RUN)] == ["new"]


def test_a_list_uncovers_deletions_that_the_watch_missed() -> None:
    seen = cache()
    seen.observe(thing(1, name="kept", uid="k"))
    seen.observe(thing(2, name="lost", uid="l"))
    seen.observe(thing(9, name="younger than the list", uid="y"))
    absent = seen.absent_from([thing(1, name="kept", uid="k").metadata], list_version=5)
    assert [t.metadata.name for t in absent] == ["lost"]


def test_object_whose_label_names_another_owner_leaves_the_first() -> None:
    seen = cache()
    seen.observe(thing(1))
    assert seen.observe(thing(2, run="other"))
    assert list(seen.belonging_to(RUN)) == []
    assert [t.metadata.resource_version for t in seen.belonging_to(Key("ns", "other"))] == ["2"]


def test_runs_are_kept_apart() -> None:
    seen = cache()
    seen.observe(thing(1, name="a", uid="1", run="r"))
    seen.observe(thing(2, name="b", uid="2", run="s"))
    assert [t.metadata.name for t in seen.belonging_to(Key("ns", "s"))] == ["b"]
