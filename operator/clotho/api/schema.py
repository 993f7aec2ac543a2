"""msgspec types -> the structural OpenAPI schemas of a CRD."""

from typing import Any

import msgspec
from msgspec import NODEFAULT, UNSET, inspect

Schema = dict[str, Any]


def schema_of(kind: type) -> Schema:
    return _convert(inspect.type_info(kind))


def without_defaults(schema: Schema) -> Schema:
    """For a status: the API server must not fill in what was not observed."""
    kept = {key: value for key, value in schema.items() if key != "default"}
    if "items" in kept:
        kept["items"] = without_defaults(kept["items"])
    if "properties" in kept:
        kept["properties"] = {name: without_defaults(value) for name, value in kept["properties"].items()}
    return kept


def _convert(kind: inspect.Type) -> Schema:
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return _convert(inner) | (extra or {})
        case inspect.UnionType(types=options):
            (present,) = (option for option in options if not isinstance(option, inspect.NoneType))
            return _convert(present)
        case inspect.StructType():
            return _struct(kind)
        case inspect.DictType():
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case inspect.AnyType():
            return {"x-kubernetes-preserve-unknown-fields": True}
        case inspect.VarTupleType() | inspect.ListType():
            return {"type": "array", "items": _convert(kind.item_type)} | _lengths(kind, "Items")
        case inspect.LiteralType(values=values):
            return {"type": "string", "enum": list(values)}
        case inspect.StrType():
            pattern = {"pattern": kind.pattern} if kind.pattern else {}
            return {"type": "string"} | _lengths(kind, "Length") | pattern
        case inspect.IntType():
            return {"type": "integer", "format": "int64"} | _bounds(kind)
        case inspect.FloatType():
            return {"type": "number"} | _bounds(kind)
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
    raise TypeError(f"{kind} has no place in a CRD")


def _struct(kind: inspect.StructType) -> Schema:
    properties: Schema = {}
    for field in kind.fields:
        schema = _convert(field.type)
        if field.default not in (NODEFAULT, UNSET, None, "", ()):
            schema["default"] = msgspec.to_builtins(field.default)
        elif isinstance(field.default_factory, type) and issubclass(field.default_factory, msgspec.Struct):
            schema["default"] = {}  # the defaults inside do the rest
        properties[field.encode_name] = schema
    required = [field.encode_name for field in kind.fields if field.required]
    document = kind.cls.__doc__
    return (
        {"type": "object"}
        | ({"description": document} if document else {})
        | {"properties": properties}
        | ({"required": required} if required else {})
    )


def _lengths(kind: Any, noun: str) -> Schema:
    given = {f"min{noun}": kind.min_length, f"max{noun}": kind.max_length}
    return {key: value for key, value in given.items() if value is not None}


def _bounds(kind: inspect.IntType | inspect.FloatType) -> Schema:
    schema: Schema = {}
    for bound, value, exclusive in (
        ("minimum", kind.ge, False),
        ("minimum", kind.gt, True),
        ("maximum", kind.le, False),
        ("maximum", kind.lt, True),
    ):
        if value is not None:
            schema[bound] = value
            if exclusive:
                schema[f"exclusive{bound.capitalize()}"] = True
    return schema
