"""Descriptions of environments are bounded, whatever they contain."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clotho_contract import description
from clotho_contract.description import ConfigField, Description, bounded

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=8),
    max_leaves=10,
)
FIELDS = st.builds(
    ConfigField,
    name=st.text(max_size=300),
    type=st.text(max_size=300),
    description=st.text(max_size=900),
    default=JSON,
    enum=st.lists(JSON, max_size=80).map(tuple),
)


@given(st.builds(Description, name=st.text(max_size=300), fields=st.lists(FIELDS, max_size=12).map(tuple)))
def test_bounding_a_description_is_complete_and_idempotent(described: Description) -> None:
    smaller = bounded(described)
    assert len(smaller.fields) + smaller.omitted_fields == len(described.fields)
    assert len(description.encode(smaller)) < description.TOTAL_LIMIT + 2000
    assert bounded(smaller) == smaller
    assert description.decode(description.encode(smaller)) == smaller


def test_many_and_large_fields_are_left_out_and_counted() -> None:
    many = bounded(Description(name="x", fields=tuple(ConfigField(name=f"f{n}") for n in range(300))))
    assert (len(many.fields), many.omitted_fields) == (256, 44)
    large = ConfigField(name="n" * 9999, default="d" * 490, description="t" * 9999)
    filled = bounded(Description(name="x", fields=(large,) * 256))
    assert len(description.encode(filled)) < description.TOTAL_LIMIT + 2000
    assert filled.omitted_fields > 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"name": 1}',
        b'{"name": "x", "fields": [{}]}',
        b'{"name": "x", "omittedFields": 1e30}',
        b"\xff",
    ],
)
def test_anything_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        description.decode(body)
