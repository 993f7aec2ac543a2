"""An environment's config fields as JSON: what the catalogue shows and what people may set."""

from typing import Any

from clotho_environment.entries import NativeEntry


def describe(entry: NativeEntry) -> dict[str, Any]:
    """Name, description and fields; `fixed` marks those that the entry itself decides."""
    schema = entry.kind.config_class.model_json_schema()
    required = set(schema.get("required", ())) - set(entry.preset)
    return {
        "name": entry.kind.name,
        "class": entry.kind.__name__,
        "description": (entry.kind.__doc__ or "").strip().partition("\n")[0],
        "fields": [
            _field(name, field, entry, is_required=name in required) for name, field in schema["properties"].items()
        ],
    }


def _field(name: str, field: dict[str, Any], entry: NativeEntry, *, is_required: bool) -> dict[str, Any]:
    limits = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "enum"}
    return {
        "name": name,
        "type": _type(field),
        "description": field.get("description", ""),
        "default": entry.preset.get(name, field.get("default")),
        "required": is_required,
        "fixed": name in entry.preset,
    } | {key: value for key, value in field.items() if key in limits}


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " | ".join(_type(option) for option in field["anyOf"])
    return str(field.get("type") or field.get("$ref", "any").rpartition("/")[2])
