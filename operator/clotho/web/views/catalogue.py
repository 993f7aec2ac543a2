"""Environments with their fields, and inference tests with the scores of their models."""

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]
View = dict[str, Any]


def environment_view(body: Object) -> View:
    spec, status, metadata = body.get("spec", {}), body.get("status", {}), body["metadata"]
    ready: Object = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "description": spec.get("description") or status.get("description", ""),
        "entry": spec.get("entry") or metadata["name"],
        "className": status.get("className", ""),
        "isReady": ready.get("status") == "True",
        "message": status.get("message", ""),
        "fields": [_field(each, spec.get("config") or {}) for each in status.get("fields", ())],
        "omittedFields": status.get("omittedFields", 0),
        "created": metadata.get("creationTimestamp"),
    }


def _field(field: Object, config: Object) -> View:
    """`value`: what the Environment itself sets."""
    limits = {key: field[key] for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in field}
    return {
        "name": field["name"],
        "type": field.get("type", ""),
        "default": field.get("default"),
        "value": config.get(field["name"]),
        "isRequired": field.get("required", False),
        "isFixed": field.get("fixed", False),
        "description": field.get("description", ""),
        "choices": field.get("enum") or [],
        "limits": limits,
    }


def inference_test_view(body: Object) -> View:
    spec, status, metadata = body.get("spec", {}), body.get("status", {}), body["metadata"]
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "environment": spec.get("environmentName") or spec.get("entry", ""),
        "phase": status.get("phase", "Pending"),
        "message": status.get("message", ""),
        "steps": spec.get("steps", 3),
        "groupSize": spec.get("groupSize", 16),
        "models": status.get("models", []),
        "bestModel": (status.get("summary") or {}).get("bestModel", ""),
        "created": metadata.get("creationTimestamp"),
    }
