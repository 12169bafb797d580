"""The OpenAPI description of the admin API, made from routes.py and schema.py: only its sentences are by hand."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

import headgate
from headgate.service.admin import schema
from headgate.service.admin.routes import QUERY_PARAMETERS, ROUTES, RULEBOOK_TEXT, AdminRoute

_ERRORS = {
    400: "This cannot be done: the sentence says why.",
    401: "No token, or a wrong one.",
    404: "There is no such thing.",
    409: "Not with these settings, or not any more.",
    412: "Another change came first.",
    413: "The body is too large.",
    415: "The body is in no format that is read here.",
    429: "Too often.",
    503: "The engine does not answer.",
}
_COMMON_ERRORS = (400, 401, 429)
_PATH_TYPES = {"version": "integer"}


@cache
def description() -> bytes:
    """Returns the description as JSON."""
    structs = {route.response_type for route in ROUTES} | {schema.AdminErrorBody}
    structs |= {route.request_type for route in ROUTES if isinstance(route.request_type, type)}
    _, components = msgspec.json.schema_components(
        sorted(structs, key=lambda struct: struct.__name__), ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "headgate admin",
            "version": headgate.__version__,
            "description": "Rules, history, overrides and counts, for operators.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def _operation(route: AdminRoute) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.summary,
        "responses": {
            "200": {"description": "Done.", "content": _json(route.response_type)},
            **{
                str(status): {
                    "description": _ERRORS[status],
                    "content": {"application/problem+json": {"schema": _reference(schema.AdminErrorBody)}},
                }
                for status in sorted({*_COMMON_ERRORS, *route.errors})
            },
        },
    }
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if isinstance(route.request_type, type):
        operation["requestBody"] = {"required": True, "content": _json(route.request_type)}
    elif route.request_type is RULEBOOK_TEXT:
        content = {kind: {"schema": {"type": "string"}} for kind in ("application/yaml", "application/toml")}
        content["application/json"] = {"schema": {"type": "object"}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(route: AdminRoute) -> list[dict[str, Any]]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": _PATH_TYPES.get(name, "string")}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    for name in route.queries:
        shape, about = QUERY_PARAMETERS[name]
        parameters.append({"name": name, "in": "query", "schema": shape, "description": about})
    if route.is_change:
        about = "Who makes the change; what is not ASCII is percent-encoded."
        shape = {"type": "string", "minLength": 1, "maxLength": 300}
        parameters.append(
            {"name": "X-Headgate-Author", "in": "header", "required": True, "schema": shape, "description": about}
        )
    if "expected" in route.queries:
        about = "The ETag of GET /rules: only if that version is in force."
        parameters.append({"name": "If-Match", "in": "header", "schema": {"type": "string"}, "description": about})
    return parameters


def _json(struct: Any) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(struct)}}


def _reference(struct: Any) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{struct.__name__}"}
