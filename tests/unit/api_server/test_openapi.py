"""The document describes exactly what is served."""

import pytest
from aiohttp import web

from clotho_api_server.http.app import add_routes
from clotho_api_server.http.openapi import OPERATIONS, document
from clotho_api_server.state.service import Service


def test_every_route_is_described_and_every_description_served() -> None:
    app = web.Application()
    add_routes(app, object.__new__(Service))
    served = {(route.method.lower(), route.resource.canonical) for route in app.router.routes() if route.resource}
    described = {(operation.method, operation.path) for operation in OPERATIONS}
    assert {route for route in served if route[0] != "head"} - {("get", "/openapi.json")} == described


def test_schema_references_resolve() -> None:
    text = str(document())
    schemas = document()["components"]["schemas"]
    for name in {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schemas


@pytest.mark.parametrize("path", ["/scored_data", "/lease/{id}/ack"])
def test_bodies_are_described(path: str) -> None:
    assert document()["paths"][path]["post"]["requestBody"]["required"]
