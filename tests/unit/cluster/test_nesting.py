"""Deep JSON is cut before it is decoded; everything else stays as it is, byte for byte."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clotho.api.nesting import is_too_deep
from clotho.cluster.nesting import BARE, IN_EVENT, IN_LIST, LEVELS, bounded


def nested(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return opening * levels + b"1" + closing * levels


def an_object(levels: int, name: str = "r") -> bytes:
    """`levels` in all: the object and its spec are the first two."""
    return b'{"metadata":{"name":"%s"},"spec":{"config":%s,"after":[1]}}' % (name.encode(), nested(levels - 2))


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


WRAPPED = {BARE: b"%s", IN_EVENT: b'{"type":"ADDED","object":%s}', IN_LIST: b'{"metadata":{},"items":[%s]}'}


@pytest.mark.parametrize("surrounding", [BARE, IN_EVENT, IN_LIST])
@pytest.mark.parametrize("levels", [LEVELS, LEVELS + 1, 1000, 9999])
def test_same_limit_however_an_object_arrives(surrounding: int, levels: int) -> None:
    raw = WRAPPED[surrounding] % an_object(levels)
    found = json.loads(bounded(raw, surrounding))
    item = {BARE: lambda: found, IN_EVENT: lambda: found["object"], IN_LIST: lambda: found["items"][0]}[surrounding]()
    assert depth(item) == LEVELS
    assert is_too_deep(item["spec"]), "what was cut is refused, never taken for something smaller"
    assert item["metadata"] == {"name": "r"}
    assert item["spec"]["after"] == [1], "what follows the deep part is kept"


def test_only_the_deep_objects_of_a_list_are_cut() -> None:
    raw = b'{"items":[%s]}' % b",".join([an_object(5, "a"), an_object(2000, "b"), an_object(6, "c")])
    items = json.loads(bounded(raw, IN_LIST))["items"]
    assert [(item["metadata"]["name"], depth(item)) for item in items] == [("a", 5), ("b", LEVELS), ("c", 6)]


def test_several_deep_branches_are_cut() -> None:
    raw = b'{"a":%s,"b":%s,"c":2}' % (nested(300), nested(300, b"[", b"]"))
    found = json.loads(bounded(raw))
    assert depth(found["a"]) == depth(found["b"]) == LEVELS - 1
    assert found["c"] == 2


def test_brackets_in_strings_do_not_count() -> None:
    raw = msgspec.json.encode({"text": '"[{' * 500 + "\\" + "}", "list": ["]", "\\", '\\"[']})
    assert bounded(raw) is raw


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[]{}",\\:a\n\u2028', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[]{}"\\', max_size=3), inner, max_size=4),
    max_leaves=40,
)


@given(value=st.dictionaries(st.text('[]{}"\\a', max_size=3), JSON, min_size=1, max_size=4), levels=st.integers(0, 300))
def test_any_object_is_bounded_and_shallow_ones_are_unchanged(value: dict[str, object], levels: int) -> None:
    raw = json.dumps(value).encode()[:-1] + b',"deep":' + nested(levels) + b"}"
    found = json.loads(bounded(raw))
    assert depth(found) <= LEVELS
    assert (depth(found["deep"]) == levels) is (levels < LEVELS)
    assert {key: found[key] for key in value if key != "deep"} == {k: v for k, v in value.items() if k != "deep"}
