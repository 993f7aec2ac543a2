"""The OpenAPI document at /openapi.json, built from the same types that decode the requests."""

from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho_api_server.parsing.groups import ScoredData
from clotho_contract.api_protocol import (
    IDEMPOTENCY_HEADER,
    LONGEST_IDEMPOTENCY_KEY,
    PROTOCOL_HEADER,
    ApiStatus,
    AtStep,
    CurrentStep,
    EnvIdentifier,
    EnvRegistered,
    EnvStatus,
    Evaluations,
    LeaseRequest,
    NewEvaluation,
    Register,
    Registered,
    RegisterEnv,
    Renewed,
)
from clotho_contract.trajectory import IGNORE_INDEX, NO_LOGPROB

Json = dict[str, Any]


class Operation(Struct, frozen=True):
    method: str
    path: str
    summary: str
    body: Any = None
    answer: Any = None
    statuses: tuple[int, ...] = ()
    may_have_a_key: bool = False


_NUMBERS: Final[Json] = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
_INTEGERS: Final[Json] = {"type": "array", "items": {"type": "array", "items": {"type": "integer", "format": "int32"}}}


def _nested(schema: Json) -> Json:
    return {"type": "array", "items": schema}


def _optional(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


_OBJECT: Final[Json] = {"type": "object"}
_MESSAGE: Final[Json] = {"type": "object", "required": ["role", "content"]}
_GROUP_FIELDS: Final[Json] = {
    "tokens": _INTEGERS,
    "masks": {**_INTEGERS, "description": f"The token where it is trained, {IGNORE_INDEX} elsewhere."},
    "scores": {"type": "array", "items": {"type": "number"}},
    "advantages": _optional(_NUMBERS),
    "ref_logprobs": _optional(_NUMBERS),
    "messages": _optional({"type": "array", "items": {"type": "array", "items": _MESSAGE}}),
    "generation_params": _optional({**_OBJECT, "description": "policy_version says which policy made the group."}),
    "inference_logprobs": _optional({**_NUMBERS, "description": f"{NO_LOGPROB} where the token was not sampled."}),
    "overrides": _optional({"type": "array", "items": _OBJECT}),
    "group_overrides": _optional(_OBJECT),
    "images": {},
    "env_id": _optional({"type": "integer", "minimum": 0}),
    "distill_token_ids": _optional(_nested(_INTEGERS)),
    "distill_logprobs": _optional(_nested(_NUMBERS)),
}
_GROUP: Final[Json] = {
    "type": "object",
    "description": "Sequences that answer one prompt. Arrays per token are as long as that sequence's tokens.",
    "required": ["tokens", "masks", "scores"],
    "properties": {name: _GROUP_FIELDS[name] for name in ScoredData.__struct_fields__},
}
_GROUP_REFERENCE: Final[Json] = {"$ref": "#/components/schemas/ScoredData"}
_LIST_OF_GROUPS: Final[Json] = {"type": "array", "items": _GROUP_REFERENCE}

_KEY: Final[Json] = {
    "name": IDEMPOTENCY_HEADER,
    "in": "header",
    "description": "The client's name for what it sends: sent again, it gets the same answer and nothing is added.",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_IDEMPOTENCY_KEY, "pattern": "^[ -~]*$"},
}

OPERATIONS: Final = (
    Operation("get", "/", "Who answers here."),
    Operation("get", "/info", "Batch size and longest sequence; -1 until a trainer registers."),
    Operation("get", "/wandb_info", "Group and project of the trainer."),
    Operation("get", "/status", "Step, queue and environments.", answer=ApiStatus),
    Operation("get", "/latest_example", "The group received last."),
    Operation("post", "/register", "A trainer starts or starts again.", Register, Registered),
    Operation("post", "/register-env", "An environment joins.", RegisterEnv, EnvRegistered, (409,)),
    Operation("post", "/disconnect-env", "An environment leaves.", EnvIdentifier),
    Operation("get", "/status-env", "What an environment needs to pace itself.", EnvIdentifier, EnvStatus, (404,)),
    Operation("post", "/scored_data", "One group; answered once on disk.", _GROUP_REFERENCE, None, (429, 503), True),
    Operation("post", "/scored_data_list", "Several groups, all or none.", _LIST_OF_GROUPS, None, (429, 503), True),
    Operation("get", "/batch", "The next batch or null; counts as trained once it has been sent."),
    Operation("post", "/lease", "The next batch, to be acknowledged; waits for one.", LeaseRequest, None, (204, 409)),
    Operation("post", "/lease/{id}/renew", "More time for a lease.", None, Renewed, (409,)),
    Operation("post", "/lease/{id}/ack", "The batch is trained and made this step.", AtStep, CurrentStep, (409,)),
    Operation("post", "/lease/{id}/release", "The batch goes back to the queue.", None, None, (409,)),
    Operation("post", "/checkpointed", "A checkpoint holds all steps up to this one.", AtStep),
    Operation("post", "/evaluations", "What an environment's evaluation returned.", NewEvaluation),
    Operation("get", "/evaluations", "The newest of them, oldest first.", answer=Evaluations),
    Operation("get", "/reset_data", "Delete everything; needs the administrator's token.", None, None, (403,)),
)


@cache
def document() -> Json:
    kinds = {kind for op in OPERATIONS for kind in (op.body, op.answer) if isinstance(kind, type)}
    _, components = msgspec.json.schema_components(
        sorted(kinds, key=lambda kind: kind.__name__), ref_template="#/components/schemas/{name}"
    )
    paths: Json = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Clotho API server",
            "version": "1",
            "description": "Atropos' trajectory protocol with durable, leased batches.",
        },
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, "ScoredData": _GROUP},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic", "description": "Any user; the password is the token."},
            },
        },
    }


def _describe(operation: Operation) -> Json:
    content = {"content": {"application/json": {"schema": _schema(operation.answer)}}} if operation.answer else {}
    described: Json = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "Done.", **content},
            "401": {"description": "The token is missing or wrong."},
            **{str(status): {"description": _MEANINGS[status]} for status in operation.statuses},
        },
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _schema(operation.body)}},
        }
        for status in (400, 408, 413, 422):
            described["responses"][str(status)] = {"description": _MEANINGS[status]}
    if "{id}" in operation.path:
        described["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    if operation.may_have_a_key:
        described["parameters"] = [_KEY]
    return described


_MEANINGS: Final = {
    204: "No batch came in time.",
    400: "The body is not what its encoding says, or a header cannot be used.",
    403: "The administrator's token is needed.",
    404: "This environment is not registered.",
    408: "The body came too slowly.",
    409: "Unknown or expired lease, or no trainer has registered.",
    413: "The body is too large.",
    422: "A field is wrong; the answer names it.",
    429: f"The queue is full; try again after Retry-After seconds (clients that send {PROTOCOL_HEADER}).",
    503: "The queue is full, or the disk refused; try again after Retry-After seconds.",
}


def _schema(kind: Any) -> Json:
    if isinstance(kind, dict):
        return kind
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
