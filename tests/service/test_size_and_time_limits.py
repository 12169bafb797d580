"""Requests that are too large, too slow or no HTTP get a status, never a 500, and delay no other request for
long.
"""

import asyncio
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from headgate.enforcement.call_plan import CallPlan
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import InvalidCharge
from headgate.service import check_schema, sample_rules
from headgate.service.app import App
from headgate.service.asgi import Asgi
from headgate.service.body_timeout import BodyTimeouts
from headgate.service.check import Checker
from headgate.service.envoy.rls import RateLimits
from headgate.service.json_decoding import JsonDecoder
from headgate.service.openapi import VERBS
from headgate.service.receipt_tokens import ReceiptSigner
from headgate.service.settings import Settings
from tests.service.service_harness import Service

CHECK_BODY = b'{"attributes": {"user": "ann"}}'
BODY = 65536


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as running:
        yield running
        output = running.output
    assert "could not be answered" not in output
    assert "Traceback" not in output


def sent(service: Service, data: bytes, *, close: bool = False) -> bytes:
    """Returns the response to these bytes, until it is complete or the connection ends."""
    host, _, port = service.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(data)
        if close:
            line.shutdown(socket.SHUT_WR)
        back = b""
        while part := line.recv(65536):
            back += part
            head, end, body = back.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            if end and length and len(body) >= int(length[1]):
                break
    return back


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def posted(body: bytes, *fields: str, target: str = "/v1/check", version: str = "1.1") -> bytes:
    lines = [f"POST {target} HTTP/{version}", "host: h", *(fields or (f"content-length: {len(body)}",)), "", ""]
    return "\r\n".join(lines).encode() + body


def attributes(**found: Any) -> bytes:
    return json.dumps({"attributes": found}).encode()


def test_sizes_are_bounded(service: Service) -> None:
    def check(body: bytes) -> int:
        return service.send_request("POST", "/v1/check", body).status

    assert check(attributes(**{f"a{n}": 1 for n in range(check_schema.MAX_ATTRIBUTES)})) == 200
    assert check(attributes(**{f"a{n}": 1 for n in range(check_schema.MAX_ATTRIBUTES + 1)})) == 400
    assert check(attributes(**{"n" * check_schema.MAX_NAME_CHARS: 1})) == 200
    assert check(attributes(**{"n" * (check_schema.MAX_NAME_CHARS + 1): 1})) == 400
    assert check(attributes(user="v" * check_schema.MAX_VALUE_CHARS)) == 200
    assert check(attributes(user="v" * (check_schema.MAX_VALUE_CHARS + 1))) == 400
    assert check(CHECK_BODY.ljust(BODY)) == 200
    assert check(CHECK_BODY.ljust(BODY + 1)) == 413
    one: dict[str, Any] = {"attributes": {}}
    assert service.post("checks", checks=[one] * 100).status == 200
    reply = service.post("checks", checks=[one] * 101)
    assert (reply.status, reply.json["detail"]) == (400, "These are 101 checks; 100 at a time are answered.")
    assert service.post("refund", receipt="r" * check_schema.MAX_RECEIPT_CHARS).status == 404
    assert service.post("refund", receipt="r" * (check_schema.MAX_RECEIPT_CHARS + 1)).status == 400


def test_a_body_may_come_in_parts_and_is_bounded_all_the_same(service: Service) -> None:
    chunked = "transfer-encoding: chunked"
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHECK_BODY), CHECK_BODY)
    assert status(sent(service, posted(whole, chunked))) == 200
    part = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    assert status(sent(service, posted(part * 5, chunked))) == 413  # and it has not ended yet
    assert status(sent(service, posted(b"", "content-length: 999999999"))) == 413
    assert status(sent(service, posted(b"", "content-length: 999999999", "expect: 100-continue"))) == 413


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "The body is empty"),
        (b"null", "must be an object, not null"),
        (b"{", "ends too early"),
        (b'{"attributes": {"user": "\\ud800"}}', "half of a surrogate pair"),
        (b'{"attributes": {"user": "\\ud800\\u0041"}}', "surrogate pair"),
        (b'{"attributes": {"user": "\xff"}}', "not UTF-8"),
        (b'{"attributes": {"user": "\x01"}}', "invalid character"),
        (b'{"attributes": {"user": 1e400}}', "Each of attributes must be"),
        (b'{"attributes": {"user": NaN}}', "not JSON"),
        (b'{"attributes": {"user": ' + b"9" * 5000 + b"}}", "Each of attributes must be"),
        (b'{"attributes": {}, "cost": ' + b"9" * 5000 + b"}", "cost must be a whole number"),
        (b"[" * 50_000, "must be an object"),
        (b'{"attributes": {"user": ' + b"[" * 20_000 + b"]" * 20_000 + b"}}", "must be"),
        (b'{"attributes": ' + b'{"a":' * 10_000, "must be"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (CHECK_BODY + b" x", "trailing characters"),
        (b'{"x` - at `$.foo[0].bar": 1}', "is not a field"),
        (b'{"x` - at `$.attributes[...]": 1}', "attributes"),
    ],
    ids=range(18),
)
def test_an_invalid_body_is_refused(service: Service, body: bytes, sentence: str) -> None:
    reply = service.send_request("POST", "/v1/check", body)
    assert reply.status == 400
    assert sentence in reply.json["detail"]
    assert len(reply.body) < 500


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (posted(CHECK_BODY, target="http://elsewhere/v1/check"), 200),  # absolute form
        (posted(CHECK_BODY, target="/v1/%63heck"), 200),
        (posted(CHECK_BODY, target="/v1/check?debug=1"), 200),
        (posted(CHECK_BODY, target="/v1//check"), 404),
        (posted(CHECK_BODY, version="1.0"), 200),
        (b"GET /healthz HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello", 200),
        (b"OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n", 404),
        (b"CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\n", 404),
        (posted(CHECK_BODY, "content-length: 5"), 400),  # says less than it sends
        (posted(CHECK_BODY, "content-length: -5"), 400),
        (
            posted(CHECK_BODY, f"content-length: {'0' * 4400}{len(CHECK_BODY)}"),
            200,
        ),  # more digits than Python reads
        (posted(CHECK_BODY, f"content-length: {'0' * 4400}{2**63}"), 413),
        (posted(CHECK_BODY, "content-length: 5", "content-length: 6"), 400),
        (posted(b"zz\r\nabc\r\n", "transfer-encoding: chunked"), 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xff" * 20, 400),
        (b"GET /healthz HTTP/1.1\r\nhost: h\r\n" + b"a: b\r\n" * 500 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nhost: h\r\na: " + b"x" * 150_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nhost: h\r\n\r\n", 414),
    ],
    ids=range(19),
)
def test_odd_requests(service: Service, data: bytes, expected: int) -> None:
    begun = time.monotonic()
    assert status(sent(service, data)) == expected
    assert time.monotonic() - begun < 5


def test_a_client_that_ends_in_the_middle_is_no_mistake_of_ours(service: Service) -> None:
    assert status(sent(service, posted(b"abc", "content-length: 500"), close=True)) == 400
    assert status(sent(service, posted(b"5\r\nabc", "transfer-encoding: chunked"), close=True)) == 400


def test_http_2_without_tls(service: Service, tmp_path: Path) -> None:
    (tmp_path / "asked").write_bytes(CHECK_BODY)
    run = subprocess.run(
        ["nghttp", "-v", "--data", str(tmp_path / "asked"), f"{service.url}/v1/check"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert ":status: 200" in run.stdout
    assert '"allowed":true' in run.stdout


class _AsgiClient:
    """A client that sends the head of a request, and then `body`, or nothing."""

    scope: ClassVar = {
        "type": "http",
        "method": "POST",
        "path": "/v1/check",
        "headers": [(b"content-length", b"5")],
    }
    status = 0

    def __init__(self, body: bytes | None = None) -> None:
        self._body = body

    async def send_request(self, served: Asgi) -> None:
        await served(self.scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


def _served(limiter: AsyncRuleLimiter) -> Asgi:
    return Asgi(App(Checker(limiter, ReceiptSigner(""), 1), RateLimits(limiter), Settings()), seconds=0.02)


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    served = _served(AsyncRuleLimiter(sample_rules.SAMPLE_RULEBOOK))
    for _ in range(2):  # the timer is set again
        silent = [_AsgiClient() for _ in range(3)]
        async with asyncio.timeout(10):
            await asyncio.gather(*(each.send_request(served) for each in silent))
        assert [each.status for each in silent] == [408, 408, 408]
    one = _AsgiClient()
    stopped = asyncio.ensure_future(one.send_request(served))
    await asyncio.sleep(0)
    stopped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopped
    assert one.status == 0  # by somebody else, and that is not answered


class _SlowLimiter(AsyncRuleLimiter):
    async def decide_plan(self, plan: CallPlan, response_follows: bool = False) -> RuleDecision:
        await asyncio.sleep(0.1)
        return await super().decide_plan(plan, response_follows)


async def test_a_decision_may_take_longer_than_a_body() -> None:
    client = _AsgiClient(CHECK_BODY)
    await client.send_request(_served(_SlowLimiter(sample_rules.SAMPLE_RULEBOOK)))
    assert client.status == 200


async def test_an_ended_body_timeout_does_not_fire() -> None:
    overdue = BodyTimeouts(0.01)
    task = overdue.begin()
    overdue.end(task)
    await asyncio.sleep(0.05)
    assert not task.cancelling()
    overdue.begin()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(10)
    assert overdue.timed_out(task)
    assert not task.cancelling()


_json = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda each: some.lists(each, max_size=3) | some.dictionaries(some.text(), each, max_size=3),
    max_leaves=8,
)
_names = some.sampled_from(["attributes", "cost", "receipt", "verdicts", "checks", "together", "timeout", "a`$.b"])
_like = some.dictionaries(_names, _json | some.dictionaries(some.text(), _json, max_size=3), max_size=4)


@given(
    some.sampled_from([verb.request_type for verb in VERBS]),
    some.binary()
    | (_json | _like | some.fixed_dictionaries({"checks": some.lists(_like)})).map(
        lambda value: json.dumps(value).encode()
    ),
)
def test_a_body_is_read_or_refused_in_a_sentence(kind: type[msgspec.Struct], body: bytes) -> None:
    try:
        decoded = JsonDecoder(kind)(body)
    except InvalidCharge as error:
        message = str(error)
    else:
        assert isinstance(decoded, kind)
        message = "."
    assert re.search(r"[.?]$", message)
    assert len(message) < 400
