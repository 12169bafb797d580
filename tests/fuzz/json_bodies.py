"""Draws JSON bodies for every verb and POST /json: valid ones, changed in their values or bytes."""

import json
from random import Random
from typing import Any

from headgate.service.openapi import VERBS
from tests.fuzz.connections import ReopeningConnection
from tests.fuzz.mutate import mutate_bytes, mutated_document
from tests.service.service_harness import Service

CALLS: list[dict[str, Any]] = [
    {"user": "ann"},
    {"method": "POST", "path": "/login", "address": "192.0.2.7", "user": "bob", "plan": "free"},
    {"path": "/held/a", "user": "eve"},
    {"path": "/slow"},
    {"path": "/smooth/7", "tokens": 3},
    {"path": "/closed", "cookie.sid": "1", "plan": "pro", "host": "shop.example"},
]
REFERENCE: dict[str, Any] = {
    "domain": "edge",
    "hitsAddend": 2,
    "descriptors": [
        {"entries": [{"key": "user", "value": "ann"}, {"key": "remote_address", "value": "192.0.2.7"}]},
        {"entries": [{"key": "path", "value": "/a b?c"}], "limit": {"requestsPerUnit": 5, "unit": "MINUTE"},
        "hitsAddend": "0"},
        {"entries": [{"key": "plan", "value": "free"}], "hitsAddend": "3", "isNegativeHits": True},
    ],
}  # fmt: skip
FINE = {200, 400, 404, 408, 409, 413}
LONGEST = 4096  # bytes of an answer that says why there is none


class CheckDocuments:
    """Every verb of /v1."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._line = ReopeningConnection("127.0.0.1", service.port)
        self._receipts: list[str] = []

    async def open(self) -> None:
        """Receipts that are good once; the same places in the same order, so that an input finds its own again."""
        for call in CALLS:
            request = {"attributes": call, "receipt": True}
            response = json.loads((await self._posted("/v1/check", json.dumps(request).encode())).body)
            self._receipts.append(response.get("receipt", "none"))

    async def close(self) -> None:
        self._line.close()

    def make(self, rng: Random) -> tuple[str, bytes]:
        verb = rng.choice(VERBS).name
        receipt = rng.choice(self._receipts)
        if rng.random() < 0.5:
            receipt = mutate_bytes(rng, receipt.encode()).decode("latin-1")
        one = {
            "attributes": rng.choice(CALLS),
            "cost": rng.choice((None, 0, 1, 3)),
            "receipt": True,
            "verdicts": True,
        }
        valid: dict[str, Any]
        match verb:
            case "check":
                valid = one
            case "peek":
                valid = {"attributes": rng.choice(CALLS), "verdicts": True}
            case "checks":
                valid = {"checks": [one] * rng.randint(1, 5), "together": rng.random() < 0.5}
            case "reserve":
                valid = {"attributes": rng.choice(CALLS), "timeout": rng.choice((0, 0.5, 3e7)), "cost": 2}
            case "refund":
                valid = {"receipt": receipt, "cost": rng.choice((None, 1, 2**53 - 1))}
            case "settle":
                valid = {"receipt": receipt, "cost": rng.choice((None, 1, 2**53 - 1)), "rule": None}
            case _:
                valid = {"receipt": receipt}
        return f"/v1/{verb}", mutated_document(rng, valid)

    async def send(self, made: tuple[str, bytes]) -> str | None:
        reply = await self._posted(*made)
        if reply is None:
            return "the connection was closed without an answer"
        return fault(reply.status, reply.body, FINE)

    async def _posted(self, path: str, body: bytes) -> Any:
        head = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n"
        return await self._line.send_request(head.encode() + body)


class ReferenceDocuments(CheckDocuments):
    """POST /json."""

    def make(self, rng: Random) -> tuple[str, bytes]:
        return "/json", mutated_document(rng, REFERENCE)

    async def send(self, made: tuple[str, bytes]) -> str | None:
        reply = await self._posted(*made)
        if reply is None:
            return "the connection was closed without an answer"
        return fault(reply.status, reply.body, FINE | {429})


def fault(status: int, body: bytes, fine: set[int]) -> str | None:
    """Returns what is wrong with a response: its status, or it is no document, or it repeats what was sent."""
    if status not in fine:
        return f"it answered {status}: {body[:500]!r}"
    try:
        json.loads(body)
    except ValueError:
        return f"{status} with what is no JSON: {body[:500]!r}"
    if status >= 400 and status != 429 and len(body) > LONGEST:
        return f"{status} with {len(body)} bytes: {body[:300]!r}"
    return None
