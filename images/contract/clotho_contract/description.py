"""An environment's own description: its config fields. It comes from untrusted code, so both sides bound it."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from clotho_contract import untrusted

PATH: Final = "/description"  # on the environment's status port
MAX_FIELDS: Final = 256
MAX_CHOICES: Final = 64
NAME_LIMIT: Final = 128
TEXT_LIMIT: Final = 500
VALUE_LIMIT: Final = 500  # bytes of JSON
VALUE_LEVELS: Final = 32  # nested lists and objects, at most
Length = Annotated[int, Meta(ge=0, le=2**53)]  # what every JSON parser can hold
TOTAL_LIMIT: Final = 160 * 1024  # bytes of JSON: an object in etcd may have ten times as much


class ConfigField(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One setting of an environment. `type` is JSON Schema's, several joined by ` | `."""

    name: str
    type: str = "any"
    default: Any = None
    description: str = ""
    required: bool = False
    fixed: bool = False  # decided by the entry or by the run, not by a user
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None
    min_length: Length | None = None
    max_length: Length | None = None
    enum: tuple[Any, ...] = ()


class Description(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    name: str
    class_name: str = ""
    description: str = ""
    fields: tuple[ConfigField, ...] = ()
    omitted_fields: Length = 0


def encode(description: Description) -> bytes:
    return msgspec.json.encode(description)


def decode(body: bytes) -> Description:
    """Raises msgspec.MsgspecError for anything of another shape."""
    return untrusted.decode(body, Description)


def bounded(description: Description) -> Description:
    """The same within limits: texts are cut, long defaults and superfluous fields left out and counted."""
    kept: list[ConfigField] = []
    room = TOTAL_LIMIT
    for field in description.fields[:MAX_FIELDS]:
        smaller = _bounded_field(field)
        room -= len(msgspec.json.encode(smaller))
        if room < 0:
            break
        kept.append(smaller)
    return Description(
        name=_cut(description.name, NAME_LIMIT),
        class_name=_cut(description.class_name, NAME_LIMIT),
        description=_cut(description.description, TEXT_LIMIT),
        fields=tuple(kept),
        omitted_fields=description.omitted_fields + len(description.fields) - len(kept),
    )


def _bounded_field(field: ConfigField) -> ConfigField:
    choices = tuple(choice for choice in field.enum if choice is not None and _is_small(choice))
    return msgspec.structs.replace(
        field,
        name=_cut(field.name, NAME_LIMIT),
        type=_cut(field.type, NAME_LIMIT),
        description=_cut(field.description, TEXT_LIMIT),
        default=field.default if _is_small(field.default) else None,
        enum=choices if len(choices) <= MAX_CHOICES else (),
    )


def _is_small(value: object) -> bool:
    encoded = msgspec.json.encode(value)
    return len(encoded) <= VALUE_LIMIT and encoded.count(b"[") + encoded.count(b"{") <= VALUE_LEVELS


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
