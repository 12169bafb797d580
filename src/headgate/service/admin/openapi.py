"""The OpenAPI description of the admin API, made of routes.py and schema.py: only the sentences are by hand."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

import headgate
from headgate.service.admin import schema
from headgate.service.admin.routes import QUERY_PARAMETERS, ROUTES, RULEBOOK_TEXT, Route

_TROUBLES = {
    400: "This cannot be done: the sentence says why.",
    401: "No token, or a wrong one.",
    404: "There is no such thing.",
    409: "Not with these settings, or not any more.",
    412: "Somebody was faster.",
    413: "The body is too large.",
    415: "The body is in no format that is read here.",
    429: "Too often.",
    503: "The engine does not answer.",
}
_ALWAYS = (400, 401, 429)
_PATH = {"version": "integer"}


@cache
def description() -> bytes:
    """OpenAPI, as JSON."""
    structs = {route.answered for route in ROUTES} | {schema.Trouble}
    structs |= {route.asked for route in ROUTES if isinstance(route.asked, type)}
    _, components = msgspec.json.schema_components(
        sorted(structs, key=lambda struct: struct.__name__), ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    told = {
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
    return msgspec.json.encode(told)


def _operation(route: Route) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": route.verb,
        "summary": route.about,
        "responses": {
            "200": {"description": "Done.", "content": _json(route.answered)},
            **{
                str(status): {
                    "description": _TROUBLES[status],
                    "content": {"application/problem+json": {"schema": _reference(schema.Trouble)}},
                }
                for status in sorted({*_ALWAYS, *route.troubles})
            },
        },
    }
    if parameters := _parameters(route):
        told["parameters"] = parameters
    if isinstance(route.asked, type):
        told["requestBody"] = {"required": True, "content": _json(route.asked)}
    elif route.asked is RULEBOOK_TEXT:
        content = {kind: {"schema": {"type": "string"}} for kind in ("application/yaml", "application/toml")}
        content["application/json"] = {"schema": {"type": "object"}}
        told["requestBody"] = {"required": True, "content": content}
    return told


def _parameters(route: Route) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": _PATH.get(name, "string")}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    for name in route.queries:
        shape, about = QUERY_PARAMETERS[name]
        found.append({"name": name, "in": "query", "schema": shape, "description": about})
    if route.changes:
        about = "Who makes the change; what is not ASCII is percent-encoded."
        shape = {"type": "string", "minLength": 1, "maxLength": 300}
        found.append(
            {"name": "X-Headgate-Author", "in": "header", "required": True, "schema": shape, "description": about}
        )
    if "expected" in route.queries:
        about = "The ETag of GET /rules: only if that edition is in force."
        found.append({"name": "If-Match", "in": "header", "schema": {"type": "string"}, "description": about})
    return found


def _json(struct: Any) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(struct)}}


def _reference(struct: Any) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{struct.__name__}"}
