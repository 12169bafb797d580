"""The reference service's POST /json."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.clock import ManualClock
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.envoy.rls import RateLimits
from tests.servers import RedisServer

BOOK = {"rules": [{"name": "per-user", "key": "user", "missing": "skip", "limit": "2/minute fixed"}]}
ANN = b'{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}'


def limits(engine: str = "memory://") -> RateLimits:
    clock = ManualClock() if engine == "memory://" else None
    return RateLimits(AsyncRuleLimiter(BOOK, engine, clock=clock))


async def post_json(body: bytes, by: RateLimits) -> tuple[int, Any]:
    status, answer = await by.answer_json(body)
    return status, json.loads(answer)


async def test_passes_then_refuses() -> None:
    by = limits()
    status, reply = await post_json(ANN, by)
    assert status == 200
    assert reply["overallCode"] == "OK"
    assert reply["statuses"] == [
        {
            "code": "OK",
            "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE", "name": "per-user"},
            "limitRemaining": 1,
            "durationUntilReset": "40s",
        }
    ]
    assert reply["dynamicMetadata"] == {"rule": "per-user", "remaining": 1}
    await post_json(ANN, by)
    status, reply = await post_json(ANN, by)
    assert (status, reply["overallCode"], reply["statuses"][0]["code"]) == (429, "OVER_LIMIT", "OVER_LIMIT")


async def test_json_names_of_either_kind() -> None:
    body = {"domain": "shop", "hits_addend": 2, "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}
    by = limits()
    assert (await post_json(json.dumps(body).encode(), by))[1]["statuses"][0].get("limitRemaining", 0) == 0
    body["descriptors"] = [
        {"entries": [{"key": "user", "value": "bob"}], "isNegativeHits": True, "hitsAddend": "1"},
    ]
    assert (await post_json(json.dumps(body).encode(), by))[1]["statuses"][0]["limitRemaining"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"1", b"\xff\xfe", b'{"domain": 1}', b'{"domian": "shop"}',
        b'{"domain": "shop"}',
        b'{"descriptors": []}', b'{"domain": "\\ud800", "descriptors": [{}]}', b"[" * 100_000, b'{"a":' * 5000,
        b'{"domain": "shop", "descriptors": [{"hitsAddend": "-1"}]}',
        b'{"domain": "shop", "descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}',
        b'{"domain": "shop", "descriptors": [{"limit": {"requestsPerUnit": 3}}]}',
        b'{"domain": "shop", "domain": "mall"}',
        b'{"domain": NaN}',
    ],
    ids=lambda body: repr(body[:30]),
)  # fmt: skip
async def test_bad_input_is_a_sentence(body: bytes) -> None:
    status, reply = await post_json(body, limits())
    assert status == 400
    assert len(reply["error"]) > 20


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode()))
async def test_nothing_that_is_sent_is_a_fault(body: bytes) -> None:
    status, _ = await limits().answer_json(body)
    assert status == 400


async def test_no_decision_is_503() -> None:
    with RedisServer() as server:
        by = limits(server.url)
        assert (await post_json(ANN, by))[0] == 200
        server.kill()
        status, reply = await post_json(ANN, by)
        await by.limiter.close()
    assert status == 503
    assert reply["error"]
