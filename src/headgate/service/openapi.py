"""The OpenAPI description of the check API, made from check_schema.py and the statuses of app.py.

It describes the code, so only its sentences are written by hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

import headgate
from headgate.service import check_schema


class Verb(NamedTuple):
    """A method of the API: POST /v1/NAME."""

    name: str
    request_type: type[msgspec.Struct]
    response_type: type[msgspec.Struct]
    summary: str


VERBS: tuple[Verb, ...] = (
    Verb(
        "check",
        check_schema.CheckBody,
        check_schema.DecisionBody,
        "May this call pass? Charges every rule that applies, or none.",
    ),
    Verb("peek", check_schema.PeekBody, check_schema.DecisionBody, "Would it? Charges nothing."),
    Verb(
        "checks",
        check_schema.ChecksBody,
        check_schema.DecisionsBody,
        "Several calls: each by itself, or all or none.",
    ),
    Verb(
        "reserve",
        check_schema.ReserveBody,
        check_schema.DecisionBody,
        "Take a place now, to be served after the answer's delay.",
    ),
    Verb(
        "refund",
        check_schema.RefundBody,
        check_schema.RefundResultBody,
        "Give back what a receipt charged, or so much of it. Works once.",
    ),
    Verb(
        "settle",
        check_schema.SettleBody,
        check_schema.RefundResultBody,
        "So much was used: give back the rest, or charge what is missing, even beyond the limit. Works once.",
    ),
    Verb(
        "cancel",
        check_schema.ReceiptBody,
        check_schema.RefundResultBody,
        "Give back a place, as far as no later reservation depends on it. Works once.",
    ),
    Verb(
        "renew",
        check_schema.ReceiptBody,
        check_schema.HeldSlotsBody,
        "Hold the slots of a receipt for another ttl.",
    ),
    Verb("release", check_schema.ReceiptBody, check_schema.ReleaseResultBody, "Give the slots of a receipt back."),
    Verb(
        "finish",
        check_schema.FinishBody,
        check_schema.ReleaseResultBody,
        "Report how a call ended that an adaptive rule let pass, and give its slots back. Works once.",
    ),
)
_ERRORS = {
    400: "The request is not valid.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    503: "No decision can be made at the moment; Retry-After says when to ask again.",
}
_RECEIPT_ERRORS = {
    404: "The receipt was not written by this service, or with another secret.",
    409: "The receipt was redeemed before, or does not allow this.",
}


def description(batch: int) -> dict[str, Any]:
    """Returns the description, for a service that answers so many checks at a time."""
    structs = {struct for verb in VERBS for struct in (verb.request_type, verb.response_type)} | {
        check_schema.ErrorBody
    }
    _, components = msgspec.json.schema_components(
        sorted(structs, key=lambda struct: struct.__name__), ref_template="#/components/schemas/{name}"
    )
    components["ChecksBody"]["properties"]["checks"]["maxItems"] = batch
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headgate",
            "version": headgate.__version__,
            "description": "May a call pass? A refusal is an answer, and has the status 200.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {f"/v1/{verb.name}": {"post": _operation(verb)} for verb in VERBS} | _HEALTH,
        "components": {"schemas": components},
    }


def _operation(verb: Verb) -> dict[str, Any]:
    redeems = (
        "receipt" in verb.request_type.__struct_fields__
        and "attributes" not in verb.request_type.__struct_fields__
    )
    errors = sorted((_ERRORS | (_RECEIPT_ERRORS if redeems else {})).items())
    problem = {"application/problem+json": {"schema": _reference(check_schema.ErrorBody)}}
    return {
        "operationId": verb.name,
        "summary": verb.summary,
        "requestBody": {"required": True, "content": _json(verb.request_type)},
        "responses": {
            "200": {"description": "Decided.", "content": _json(verb.response_type)},
            **{str(status): {"description": about, "content": problem} for status, about in errors},
        },
    }


def _json(struct: Any) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(struct)}}


def _reference(struct: Any) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{struct.__name__}"}


_READY = {
    "type": "object",
    "properties": {
        "ready": {"type": "boolean"},
        "rules": {"type": "integer", "minimum": 0},
        "degraded": {
            "type": "array",
            "items": {"type": "string"},
            "description": "what does not work as it should",
        },
    },
    "required": ["ready", "rules", "degraded"],
}
_HEALTH: dict[str, Any] = {
    "/metrics": {
        "get": {
            "operationId": "metrics",
            "summary": "Metrics of all workers, in the text format of Prometheus.",
            "responses": {
                "200": {"description": "They are.", "content": {"text/plain": {"schema": {"type": "string"}}}}
            },
        }
    },
    "/healthz": {
        "get": {
            "operationId": "alive",
            "summary": "Whether the process answers.",
            "responses": {
                "200": {"description": "It does.", "content": {"text/plain": {"schema": {"type": "string"}}}}
            },
        }
    },
    "/readyz": {
        "get": {
            "operationId": "ready",
            "summary": "Whether the service is ready for requests; it is not while it stops.",
            "responses": {
                "200": {"description": "It does.", "content": {"application/json": {"schema": _READY}}},
                "503": {"description": "It stops.", "content": {"application/json": {"schema": _READY}}},
            },
        }
    },
}
