"""Readable schemas of pydantic fields, the same for our own and for Atropos' environments."""

from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from clotho_environment.atropos.introspect import schemas


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    depth: int = 1


class Everything(BaseModel):
    count: int = Field(3, ge=1, lt=10, description="How many.")
    rate: float | None = Field(None, gt=0)
    words: list[str] = Field(["a"], min_length=1, max_length=4)
    colour: Colour = Colour.RED
    perhaps: Colour | None = None
    mode: Literal["a", "b"] = "a"
    only: Literal["x"] = "x"
    inner: Inner = Inner()
    anything: Any = None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "count",
            {"type": "integer", "default": 3, "minimum": 1, "exclusiveMaximum": 10, "description": "How many."},
        ),
        ("rate", {"type": "number | null", "exclusiveMinimum": 0}),
        ("words", {"type": "array", "default": ["a"], "minLength": 1, "maxLength": 4}),
        ("colour", {"type": "string", "default": "red", "enum": ["red", "blue"]}),
        ("perhaps", {"type": "string | null", "enum": ["red", "blue"]}),
        ("mode", {"type": "string", "default": "a", "enum": ["a", "b"]}),
        ("only", {"type": "string", "default": "x", "enum": ["x"]}),
        ("inner", {"type": "object", "default": {"depth": 1}}),
        ("anything", {"type": "any"}),
    ],
)
def test_field_has_type_default_and_choices(name: str, expected: dict[str, Any]) -> None:
    assert schemas(Everything)[name] == expected


def test_types_without_a_schema_keep_their_python_names() -> None:
    class Odd(BaseModel, arbitrary_types_allowed=True):
        size: int = 1
        lock: object = Field(default_factory=object)
        call: Any = None

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            raise ValueError("no schema")

    assert schemas(Odd)["size"] == {"type": "int"}
