"""ShouldRateLimit over a real port, called by the client that Envoy's protos generate."""

from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from headgate.rules import load
from tests.servers import RedisServer
from tests.service.envoy.envoy_harness import OK, OVER_LIMIT, EnvoyClient, Unit, descriptor, serve_envoy

BOOK: dict[str, Any] = {
    "headers": "draft-11",
    "defaults": {"missing": "skip"},
    "rules": [
        {"name": "per-user", "key": "user", "limit": "3/minute fixed"},
        {"name": "login", "when": {"path": "/login"}, "key": "address", "limit": "2/hour fixed",
         "refuse": {"body": '{"sorry": true}', "type": "application/json"}},
        {"name": "burst", "key": "tenant", "limit": "100/s burst 200"},
        {"name": "new", "key": "tenant", "limit": "1/minute fixed", "mode": "shadow"},
        {"name": "queue", "key": "job", "limit": "1/s queue 5"},
        {"name": "held", "key": "stream", "limit": "2 slots"},
        {"name": "strict", "when": {"path": "/strict"}, "key": "user", "limit": "9/s", "missing": "deny"},
    ],
}  # fmt: skip

ANN, BOB = descriptor(("user", "ann")), descriptor(("user", "bob"))
NOBODY = descriptor(("unheard_of", "x"))


def heads(response: Any) -> dict[str, str]:
    return {head.key: head.value for head in response.response_headers_to_add}


def metadata(response: Any) -> Any:
    return MessageToDict(response.dynamic_metadata)


def left(response: Any) -> list[int]:
    return [status.limit_remaining for status in response.statuses]


async def test_every_field_of_an_answer() -> None:
    async with serve_envoy(BOOK) as envoy:
        envoy.clock.set_us(1_700_000_000_250_000)  # 20.25 s into a minute
        response = await envoy.should_rate_limit(ANN)
        assert response.overall_code == OK
        (status,) = response.statuses
        assert (status.code, status.limit_remaining) == (OK, 2)
        current = status.current_limit
        assert (current.requests_per_unit, current.unit, current.name) == (3, Unit.MINUTE, "per-user")
        assert (status.duration_until_reset.seconds, status.duration_until_reset.nanos) == (39, 750_000_000)
        assert heads(response) == {"RateLimit-Policy": '"per-user";q=3;w=60', "RateLimit": '"per-user";r=2;t=40'}
        assert metadata(response) == {"rule": "per-user", "remaining": 2}
        assert not response.raw_body
        assert not response.HasField("quota")
        assert not response.request_headers_to_add


async def test_every_field_of_a_refusal() -> None:
    login = descriptor((":path", "/login?next=/"), ("remote_address", "192.0.2.7"))
    async with serve_envoy(BOOK) as envoy:
        envoy.clock.set_us(1_700_002_800_000_000)  # an hour begins
        assert (await envoy.should_rate_limit(login, hits=2)).overall_code == OK
        envoy.clock.advance(600)
        response = await envoy.should_rate_limit(login)
        assert response.overall_code == OVER_LIMIT
        (status,) = response.statuses
        assert (status.code, status.limit_remaining) == (OVER_LIMIT, 0)
        assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (2, Unit.HOUR)
        assert (status.duration_until_reset.seconds, status.duration_until_reset.nanos) == (3000, 0)
        assert response.raw_body == b'{"sorry": true}'
        assert heads(response) == {
            "RateLimit-Policy": '"login";q=2;w=3600',
            "RateLimit": '"login";r=0;t=3000',
            "Retry-After": "3000",
            "Content-Type": "application/json",
        }
        assert metadata(response) == {
            "rule": "login",
            "remaining": 0,
            "refused_by": ["login"],
            "retry_after": 3000,
        }


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("off", {"Retry-After": "40"}),
        ("legacy", {"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "40",
                    "Retry-After": "40"}),
        ("envoy", {"X-RateLimit-Limit": '3, 3;w=60;name="per-user"', "X-RateLimit-Remaining": "0",
                   "X-RateLimit-Reset": "40", "Retry-After": "40"}),
    ],
)  # fmt: skip
async def test_headers_are_those_of_the_book(form: str, wanted: dict[str, str]) -> None:
    async with serve_envoy({**BOOK, "headers": form}) as envoy:
        envoy.clock.set_us(1_700_000_000_000_000)
        await envoy.should_rate_limit(ANN, hits=3)
        assert heads(await envoy.should_rate_limit(ANN)) == wanted


async def test_all_descriptors_pass_and_are_charged_or_none_is() -> None:
    async with serve_envoy(BOOK) as envoy:
        assert await envoy.codes(ANN, NOBODY, BOB) == [OK, OK, OK, OK]
        response = await envoy.should_rate_limit(ANN, NOBODY, descriptor(("user", "bob"), hits=3))
        assert response.overall_code == OVER_LIMIT
        assert [status.code for status in response.statuses] == [OK, OK, OVER_LIMIT]
        assert not response.statuses[1].HasField("current_limit")
        assert not response.statuses[1].HasField("duration_until_reset")
        assert metadata(response)["refused_by"] == ["per-user"]
        assert left(await envoy.should_rate_limit(ANN, BOB)) == [1, 1], "the refused request was not charged"


async def test_a_descriptor_that_no_rule_is_for() -> None:
    async with serve_envoy(BOOK) as envoy:
        response = await envoy.should_rate_limit(NOBODY)
        assert response.overall_code == OK
        assert [(s.code, s.HasField("current_limit"), s.limit_remaining) for s in response.statuses] == [
            (OK, False, 0)
        ]
        assert not response.response_headers_to_add
        assert not response.HasField("dynamic_metadata")


async def test_who_speaks_for_several_descriptors() -> None:
    """The one nearest to its limit; of refusals the longest."""
    async with serve_envoy(BOOK) as envoy:
        calm, login = descriptor(("tenant", "a")), descriptor(("path", "/login"), ("address", "192.0.2.7"))
        assert metadata(await envoy.should_rate_limit(calm, ANN))["rule"] == "per-user"
        response = await envoy.should_rate_limit(
            descriptor(("user", "ann"), hits=3), descriptor(("path", "/login"), ("address", "192.0.2.7"), hits=3)
        )
        assert response.overall_code == OVER_LIMIT
        assert metadata(response)["rule"] == "login"
        assert metadata(response)["refused_by"] == ["per-user", "login"]
        assert "Retry-After" not in heads(response), "three never fit into two an hour"
        assert (await envoy.should_rate_limit(login)).overall_code == OK


async def test_hits_of_the_request_and_of_a_descriptor() -> None:
    async with serve_envoy(BOOK) as envoy:
        assert left(await envoy.should_rate_limit(ANN, BOB, hits=2)) == [1, 1]
        carl, dora = descriptor(("user", "carl"), hits=3), descriptor(("user", "dora"))
        assert left(await envoy.should_rate_limit(carl, dora, hits=2)) == [0, 1]
        assert left(await envoy.should_rate_limit(descriptor(("user", "eve"), hits=0), hits=2)) == [3]


async def test_a_peek_charges_nothing_and_says_whether_anything_is_left() -> None:
    peek = descriptor(("user", "ann"), hits=0)
    async with serve_envoy(BOOK) as envoy:
        assert left(await envoy.should_rate_limit(peek)) == left(await envoy.should_rate_limit(peek)) == [3]
        await envoy.should_rate_limit(ANN, hits=3)
        assert await envoy.codes(peek) == [OVER_LIMIT, OVER_LIMIT]
        assert await envoy.codes(peek, BOB) == [OVER_LIMIT, OVER_LIMIT, OK]
        assert left(await envoy.should_rate_limit(BOB)) == [2], "bob was not charged beside it"


async def test_negative_hits_give_back_as_far_as_something_is_counted() -> None:
    async with serve_envoy(BOOK) as envoy:
        await envoy.should_rate_limit(ANN, hits=3)
        assert await envoy.codes(ANN) == [OVER_LIMIT, OVER_LIMIT]
        response = await envoy.should_rate_limit(descriptor(("user", "ann"), hits=2, back=True))
        assert (response.overall_code, left(response)) == (OK, [2])
        assert response.statuses[0].current_limit.name == "per-user"
        assert left(await envoy.should_rate_limit(descriptor(("user", "ann"), hits=50, back=True))) == [3]
        assert left(await envoy.should_rate_limit(ANN)) == [2], "no more than the limit came back"
        assert await envoy.codes(descriptor(("unheard_of", "x"), back=True)) == [OK, OK]


async def test_negative_hits_beside_a_refusal_come_back_all_the_same() -> None:
    async with serve_envoy(BOOK) as envoy:
        await envoy.should_rate_limit(ANN, BOB, hits=3)
        back = descriptor(("user", "bob"), hits=1, back=True)
        assert await envoy.codes(ANN, back) == [OVER_LIMIT, OVER_LIMIT, OK]
        assert left(await envoy.should_rate_limit(descriptor(("user", "bob"), hits=0))) == [1]


async def test_a_limit_that_comes_along_has_a_separate_count() -> None:
    limited = descriptor(("user", "ann"), limit=(2, Unit.HOUR))
    async with serve_envoy(BOOK) as envoy:
        await envoy.should_rate_limit(ANN, hits=3)
        response = await envoy.should_rate_limit(limited)
        (status,) = response.statuses
        assert (status.code, status.limit_remaining) == (OK, 1)
        current = status.current_limit
        assert (current.requests_per_unit, current.unit, current.name) == (2, Unit.HOUR, "")
        assert await envoy.codes(limited) == [OK, OK]
        assert await envoy.codes(limited, BOB) == [OVER_LIMIT, OVER_LIMIT, OK]
        assert left(await envoy.should_rate_limit(BOB)) == [2]
        assert await envoy.codes(descriptor(("user", "bob"), limit=(2, Unit.HOUR))) == [OK, OK]
        assert await envoy.codes(limited, domain="other") == [OK, OK]
        assert left(
            await envoy.should_rate_limit(descriptor(("user", "ann"), hits=1, back=True, limit=(2, Unit.HOUR)))
        ) == [1]


async def test_limits_that_come_along_in_two_units_are_counted_apart() -> None:
    async with serve_envoy(BOOK) as envoy:
        for unit, name in ((Unit.HOUR, "override/hour"), (Unit.DAY, "override/day"), (Unit.WEEK, "override/week")):
            response = await envoy.should_rate_limit(descriptor(("user", "ann"), limit=(2, unit)))
            assert (left(response), metadata(response)["rule"]) == ([1], name)


async def test_a_limit_of_no_requests_refuses_them_all() -> None:
    async with serve_envoy(BOOK) as envoy:
        for hits in (None, 5, 0):
            response = await envoy.should_rate_limit(descriptor(("user", "ann"), limit=(0, Unit.DAY), hits=hits))
            (status,) = response.statuses
            assert (status.code, status.limit_remaining) == (OVER_LIMIT, 0)
            assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (0, Unit.DAY)


async def test_shadows_never_refuse_but_say_so() -> None:
    tenant = descriptor(("tenant", "a"))
    async with serve_envoy(BOOK) as envoy:
        assert "shadow" not in metadata(await envoy.should_rate_limit(tenant))
        response = await envoy.should_rate_limit(tenant)
        assert response.overall_code == OK
        assert response.statuses[0].current_limit.name == "burst"
        assert metadata(response) == {"rule": "burst", "remaining": 198, "shadow": ["new"]}


async def test_limits_that_are_not_so_many_per_unit() -> None:
    async with serve_envoy(BOOK) as envoy:
        descriptors = (descriptor(("tenant", "a")), descriptor(("stream", "a")))
        bucket, slots = (await envoy.should_rate_limit(*descriptors)).statuses
        assert (bucket.current_limit.requests_per_unit, bucket.current_limit.unit) == (100, Unit.SECOND)
        assert bucket.limit_remaining == 199
        assert (slots.current_limit.requests_per_unit, slots.current_limit.unit) == (2, Unit.UNKNOWN)
        assert slots.limit_remaining == 1


async def test_a_bucket_that_refuses_says_when_the_same_call_would_pass() -> None:
    tenant = descriptor(("tenant", "a"))
    async with serve_envoy(BOOK) as envoy:
        full = (await envoy.should_rate_limit(tenant, hits=200)).statuses[0].duration_until_reset
        assert (full.seconds, full.nanos) == (2, 0)
        (status,) = (await envoy.should_rate_limit(tenant)).statuses
        assert status.code == OVER_LIMIT
        assert (status.duration_until_reset.seconds, status.duration_until_reset.nanos) == (0, 10_000_000)


async def test_what_would_be_delayed_passes_and_says_for_how_long() -> None:
    async with serve_envoy(BOOK) as envoy:
        job = descriptor(("job", "a"))
        assert "delay" not in metadata(await envoy.should_rate_limit(job))
        response = await envoy.should_rate_limit(job)
        assert response.overall_code == OK
        assert metadata(response)["delay"] == 1


async def test_a_rule_that_refuses_without_its_limit() -> None:
    async with serve_envoy(BOOK) as envoy:
        response = await envoy.should_rate_limit(descriptor(("path", "/strict")))
        assert response.overall_code == OVER_LIMIT
        assert not response.statuses[0].HasField("current_limit")
        assert metadata(response)["refused_by"] == ["strict"]
        assert "user" in metadata(response)["why"]


async def test_another_rulebook_while_running() -> None:
    async with serve_envoy(BOOK) as envoy:
        await envoy.should_rate_limit(ANN)
        envoy.limiter.replace(load.from_mapping({"rules": [{"name": "free", "limit": "unlimited"}]}))
        assert left(await envoy.should_rate_limit(ANN)) == [2**32 - 1]
        envoy.limiter.replace(
            load.from_mapping({**BOOK, "rules": [{**BOOK["rules"][0], "limit": "9/minute fixed"}]})
        )
        assert left(await envoy.should_rate_limit(ANN)) == [7], "the count goes on"


INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("descriptors", "more", "sentence"),
    [
        ([ANN], {"domain": ""}, "domain is empty"),
        ([ANN], {"domain": "d" * 8193}, "longer than 8192"),
        ([], {}, "1 to 100 descriptors, not 0"),
        ([ANN] * 101, {}, "1 to 100 descriptors, not 101"),
        ([descriptor(*[("k", "v")] * 101)], {}, "at most 100 entries, not 101"),
        ([descriptor(("k" * 8193, "v"))], {}, "at most 8192 letters"),
        ([descriptor(("k", "v" * 8193))], {}, "at most 8192 letters"),
        ([descriptor(("user", "a"), hits=2**53 + 1)], {}, "at most 2^53"),
        ([descriptor(("user", "a"), limit=(1, 0))], {}, "a unit from 1"),
        ([descriptor(("user", "a"), limit=(1, 8))], {}, "a unit from 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_invalid_requests(descriptors: list[Any], more: dict[str, Any], sentence: str) -> None:
    async with serve_envoy(BOOK) as envoy:
        code, details = await envoy.refused(*descriptors, **more)
        assert code == INVALID
        assert sentence in details
        assert left(await envoy.should_rate_limit(descriptor(("user", "ann"), hits=0))) == [3], (
            "nobody was charged"
        )


async def test_the_largest_valid_request() -> None:
    async with serve_envoy(BOOK) as envoy:
        most = descriptor(*[("k" * 8192, "v" * 8192)] * 10, *[("k", "v")] * 90)
        assert (await envoy.should_rate_limit(most, *[NOBODY] * 99)).overall_code == OK


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x0a\x01\xff", b"\x12\x01\x0a" * 3, b"\x00" * 50])
async def test_bytes_that_are_no_request(data: bytes) -> None:
    async with serve_envoy(BOOK) as envoy:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await envoy.send(data)
        assert caught.value.code() == INVALID
        assert "RateLimitRequest" in (caught.value.details() or "")
        assert (await envoy.should_rate_limit(ANN)).overall_code == OK, "and the server goes on"


def calls(server: RedisServer) -> dict[str, int]:
    stats = server.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): int(value.partition(",")[0].removeprefix("calls="))
        for name, value in stats.items()
    }


async def test_four_descriptors_are_one_question_to_redis(redis_server: RedisServer) -> None:
    four = [
        ANN,
        descriptor(("tenant", "a")),
        descriptor(("job", "a")),
        descriptor(("path", "/login"), ("address", "192.0.2.7")),
    ]
    async with serve_envoy(BOOK, redis_server.url) as envoy:
        assert await envoy.codes(*four) == [OK] * 5
        redis_server.call("CONFIG", "RESETSTAT")
        response = await envoy.should_rate_limit(*four)
        commands = calls(redis_server)
    assert response.overall_code == OK
    assert left(response)[0] == 1
    assert commands.pop("evalsha") == 1
    # What a script asks within the server is no round trip; and nobody asked anything beside it.
    assert not set(commands) - {"get", "set", "time", "config|resetstat", "mget", "hgetall", "info"}, commands


def book_of_one(**more: Any) -> dict[str, Any]:
    return {
        "rules": [
            {
                "name": "per-user",
                "key": "user",
                "limit": "2/day fixed",
                "missing": "skip",
                "deadline": "200ms",
                **more,
            }
        ]
    }


async def lost(envoy: EnvoyClient, server: RedisServer) -> None:
    assert (await envoy.should_rate_limit(ANN)).overall_code == OK
    server.kill()


async def test_nobody_decides_without_redis_where_the_rule_has_no_fallback() -> None:
    with RedisServer() as server:
        async with serve_envoy(book_of_one(), server.url) as envoy:
            await lost(envoy, server)
            code, sentence = await envoy.refused(ANN)
            assert code == grpc.StatusCode.UNAVAILABLE
            assert str(server.port) in sentence
            assert await envoy.codes(NOBODY) == [OK, OK], "what no rule is for needs no Redis"


@pytest.mark.parametrize(
    ("fallback", "first", "last"), [("allow", OK, OK), ("deny", OVER_LIMIT, OVER_LIMIT), ("local", OK, OVER_LIMIT)]
)
async def test_without_redis_the_fallback_decides_and_says_so(fallback: str, first: int, last: int) -> None:
    with RedisServer() as server:
        async with serve_envoy(book_of_one(fallback=fallback), server.url) as envoy:
            await lost(envoy, server)
            answers = [await envoy.should_rate_limit(ANN) for _ in range(3)]
            assert (answers[0].overall_code, answers[-1].overall_code) == (first, last)
            assert all(metadata(response)["degraded"] is True for response in answers)
            back = await envoy.should_rate_limit(descriptor(("user", "ann"), hits=1, back=True))
            assert metadata(back)["degraded"] is True, "nothing was given back"
