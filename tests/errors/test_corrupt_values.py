"""Foreign values at our keys: one error, which names the key, and nothing is overwritten.

Whatever lies there, a call is either decided or ends with CorruptState. It never ends with a raw Lua error, and
it is never taken for an outage.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import AsyncLimiter, CorruptState, Limiter
from headgate.algorithms.decision import Charge
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.published_scripts import publish
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.engines.url import open_version_store, parse_engine_url
from headgate.limit_syntax import parse
from tests.servers import KINDS, RedisServer

LIMITS = [
    *("10/minute", "7/minute burst 9", "10/minute queue 9", "10/minute fixed", "9/month fixed in Asia/Shanghai"),
    *("10/minute sliding", "10/minute log", "10/minute smooth", "10/minute smooth warmup 5m"),
]  # of minutes: on a busy machine a count of a second may expire before a test looks at it
TYPES: dict[str, tuple[str | int, ...]] = {
    "list": ("RPUSH", "KEY", "not ours"),
    "hash": ("HSET", "KEY", "field", "not ours"),
    "set": ("SADD", "KEY", "not ours"),
    "zset": ("ZADD", "KEY", 100, "not ours"),
    "stream": ("XADD", "KEY", "*", "field", "not ours"),
}
TEXTS = [
    *(b"hello", b"-1", b"nan", b"-inf", b":", b"::::::::", b"a:b:c:d:e:f", b"1,2,3", b"9" * 400, b" " * 60),
    *(b'{"count": 3, "until": "2030-01-01T00:00:00Z", "who": "somebody else"}', b"17000000000000001 x"),
    *(bytes(range(256)), b"1:1:1:,:1", b"1700000000000000:x"),
]
Verb = Callable[[Limiter], Any]
VERBS: dict[str, Verb] = {
    "take": lambda limiter: limiter.take("key"),
    "peek": lambda limiter: limiter.peek("key"),
    "take of 3": lambda limiter: limiter.take("key", 3),
    "reserve": lambda limiter: limiter.reserve("key"),
    "set_limit": lambda limiter: limiter.set_limit(limiter.peek("key").limit, "key"),
    "two of one algorithm": lambda limiter: limiter.take_all([Charge("other"), Charge("key")]),
    "two of several": lambda limiter: limiter.take_all([Charge("other", "3/hour log"), Charge("key")]),
    "at once": lambda limiter: None,
}


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as running:
        yield running


def redis_key(text: str) -> bytes:
    return RequestBuilder(parse(text), text, "hg").key("key")


def put(server: RedisServer, key: bytes, *words: str | int) -> None:
    server.call("DEL", key)
    server.call(*(key if word == "KEY" else word for word in words))


async def at_once(url: str, text: str) -> list[Any]:
    """Takes that share a round trip: of the key between those of others."""
    async with AsyncLimiter(text, url) as limiter:
        takes = (limiter.take(key) for key in ("before", "key", "after", "key"))
        return await asyncio.gather(*takes, return_exceptions=True)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("text", LIMITS)
def test_a_value_of_another_type_is_reported_and_kept(server: RedisServer, text: str, kind: str) -> None:
    server.flush()
    key = redis_key(text)
    put(server, key, *TYPES[kind])
    before = server.call("DUMP", key)
    with Limiter(text, server.url) as limiter:
        for name, verb in VERBS.items():
            if name != "at once":
                with pytest.raises(CorruptState) as refused:
                    verb(limiter)
                assert f"the key {key.decode()} holds a value that headgate did not write" in str(refused.value)
        allowed, *_ = limiter.take_all([Charge("other")]).verdicts
        assert allowed.remaining == limiter.peek("fresh").remaining - 1  # a call that fails charges nothing
    first, wrong, last, again = asyncio.run(at_once(server.url, text))
    assert first.allowed
    assert last.allowed
    assert isinstance(wrong, CorruptState)
    assert isinstance(again, CorruptState)
    assert server.call("DUMP", key) == before
    with Limiter(text, server.url) as limiter:
        limiter.reset("key")
        assert limiter.take("key")


async def jointly(url: str, text: str) -> list[Any]:
    """Calls of two charges that share a round trip, with the key as the second charge of the one in the middle."""
    async with AsyncLimiter(text, url) as limiter:
        await limiter.peek("warm")
        calls = [("a", "b"), ("c", "key"), ("d", "a"), ("key", "d")]
        decisions = (limiter.take_all([Charge(first), Charge(second)]) for first, second in calls)
        return await asyncio.gather(*decisions, return_exceptions=True)


@pytest.mark.parametrize("text", LIMITS)
def test_a_wrong_value_is_the_trouble_of_its_joint_call_only(server: RedisServer, text: str) -> None:
    key = redis_key(text)
    values = [("SET", "KEY", "hello"), ("SET", "KEY", "1700000000000000:x"), *TYPES.values()]
    with Limiter(text, server.url) as limiter:
        for words in values:
            server.flush()
            put(server, key, *words)
            before = server.call("DUMP", key)
            first, wrong, last, again = asyncio.run(jointly(server.url, text))
            for failure in (wrong, again):
                assert isinstance(failure, CorruptState), words
                assert f"the key {key.decode()} holds a value that headgate did not write" in str(failure)
            whole = limiter.peek("fresh").remaining
            assert (len(first.verdicts), len(last.verdicts)) == (2, 2)
            left = {name: limiter.peek(name).remaining for name in "abcd"}
            if first.allowed and last.allowed:
                assert (left["b"], left["c"], left["d"]) == (whole - 1, whole, whole - 1)
            assert server.call("DUMP", key) == before


def attempt(limiter: Limiter, verb: Verb) -> bool:
    """Returns whether the value could be read. Any other trouble than CorruptState is a failure."""
    try:
        verb(limiter)
    except CorruptState:
        return False
    return True


@pytest.mark.parametrize("text", LIMITS)
def test_an_unreadable_value_is_reported_and_kept(server: RedisServer, text: str) -> None:
    key = redis_key(text)
    with Limiter(text, server.url) as limiter:
        for value in TEXTS:
            for name, verb in VERBS.items():
                server.flush()
                server.call("SET", key, value)
                if name == "at once":
                    first, wrong, last, _ = asyncio.run(at_once(server.url, text))
                    assert first.allowed, value
                    assert last.allowed, value
                    assert isinstance(wrong, CorruptState), (value, wrong)
                else:
                    with pytest.raises(CorruptState, match="headgate did not write"):
                        assert not verb(limiter), (value, name)
                assert server.call("GET", key) == value


@pytest.mark.parametrize("text", LIMITS)
def test_a_damaged_value_is_decided_or_reported(server: RedisServer, text: str) -> None:
    """Values of ours, cut and changed in places."""
    key, chance = redis_key(text), random.Random(text)
    with Limiter(text, server.url) as limiter:
        for turn in range(300):
            server.flush()
            limiter.take("key", 1 + turn % 4)
            if turn % 3 == 0:
                limiter.refund(limiter.take("key", 2), 1)
            value = server.call("GET", key)
            assert isinstance(value, bytes)
            broken = bytearray(value)
            for _ in range(chance.randint(1, 3)):
                place = chance.randrange(len(broken))
                if chance.random() < 0.3:
                    del broken[place:]
                    break
                broken[place] = chance.choice(b"0123456789:,+x \xff")
            server.call("SET", key, bytes(broken))
            verb = chance.choice([verb for name, verb in VERBS.items() if name != "at once"])
            if not attempt(limiter, verb):
                assert server.call("GET", key) == bytes(broken)


def test_slots(server: RedisServer) -> None:
    server.flush()
    key = redis_key("2 slots")
    with Limiter("2 slots", server.url) as limiter:
        for kind, words in TYPES.items():
            lease = limiter.acquire("key")
            put(server, key, *words)
            before = server.call("DUMP", key)
            for verb in (
                limiter.peek,
                limiter.acquire,
                lambda _, held=lease: held.renew(),
                lambda _, held=lease: held.release(),
            ):
                with pytest.raises(
                    CorruptState, match=r"2%20slots:\{key\} holds a value that headgate did not write"
                ):
                    verb("key")
            with pytest.raises(CorruptState):
                limiter.acquire("key", timeout=0.1)
            assert server.call("DUMP", key) == before, kind
            limiter.reset("key")
            assert limiter.acquire("key").release()


def test_members(server: RedisServer) -> None:
    engine = RedisEngine(server.url)
    for words in TYPES.values():
        put(server, b"hg2:members", *words)
        before = server.call("DUMP", b"hg2:members")
        with pytest.raises(CorruptState, match="the key hg2:members holds a value"):
            engine.heartbeat("7")
        if words[0] != "ZADD":
            with pytest.raises(CorruptState, match="the key hg2:members holds a value"):
                engine.leave("7")
        assert server.call("DUMP", b"hg2:members") == before
    server.flush()
    assert engine.heartbeat("7") == (1, 0)
    engine.close()


def rulebook(**fields: Any) -> dict[str, Any]:
    return {"rules": [{"name": "api", "limit": "10/hour", "key": "user", "missing": "deny", **fields}]}


LOCKOUT = {"after": 2, "within": "1m", "for": "5m"}
OVERRIDES = [
    *(b"hello", b"", b"token_bucket a b c d|5/s", b"token_bucket 1|5/s", b"token_bucket 1 200000 5 1 9|5/s"),
    *(b"token_bucket 1 200000 5 428|five each second", b"token_bucket 1 200000 5 428|\xff\xfe"),
]


@pytest.mark.parametrize("kind", TYPES)
def test_corrupt_lockouts_and_overrides_are_reported(server: RedisServer, kind: str) -> None:
    for initials, fields in ((b"lt", {"lockout": LOCKOUT}), (b"oe", {"overrides": True})):
        server.flush()
        key = b"hg2:%b:api:{user=ann}" % initials
        put(server, key, *TYPES[kind])
        before = server.call("DUMP", key)
        with Limiter.from_rules(rulebook(**fields), server.url) as limiter:
            for verb in (limiter.check, limiter.peek, limiter.reserve):
                with pytest.raises(CorruptState) as refused:
                    verb({"user": "ann"})
                assert f"the key {key.decode()} holds a value that headgate did not write" in str(refused.value)
            assert limiter.check({"user": "bob"})
        assert server.call("DUMP", key) == before


def test_a_lockout_that_nobody_can_read(server: RedisServer) -> None:
    key = b"hg2:lt:api:{user=ann}"
    with Limiter.from_rules(rulebook(lockout=LOCKOUT), server.url) as limiter:
        for value in (b"", b"hello", b"1:2:3", b":", b"9" * 40 + b":1"):
            server.flush()
            server.call("SET", key, value)
            with pytest.raises(CorruptState, match=r"lt:api:\{user=ann\} holds a value"):
                limiter.check({"user": "ann"})
            assert server.call("GET", key) == value


@pytest.mark.parametrize("value", OVERRIDES)
def test_an_override_that_nobody_can_read(server: RedisServer, value: bytes) -> None:
    server.flush()
    server.call("SET", b"hg2:oe:api:{user=ann}", value)
    with Limiter.from_rules(rulebook(overrides=True), server.url) as limiter:
        with pytest.raises(CorruptState, match=r"oe:api:\{user=ann\}"):
            limiter.check({"user": "ann"})
        if value in (b"hello", b""):
            with pytest.raises(CorruptState, match=r"oe:api:\{user=ann\} holds a value"):
                limiter.overrides("api").get("user=ann")
            with pytest.raises(CorruptState, match=r"oe:api:\{user=ann\} holds a value"):
                list(limiter.overrides("api").list())
        limiter.overrides("api").unset("user=ann")
        assert limiter.check({"user": "ann"})


async def test_overrides_awaited(server: RedisServer) -> None:
    server.flush()
    server.call("RPUSH", b"hg2:oe:api:{user=ann}", "not ours")
    async with AsyncLimiter.from_rules(rulebook(overrides=True), server.url) as limiter:
        with pytest.raises(CorruptState, match=r"oe:api:\{user=ann\} holds a value"):
            await limiter.overrides("api").get("user=ann")
        with pytest.raises(CorruptState, match=r"oe:api:\{user=ann\} holds a value"):
            await limiter.check({"user": "ann"})


@pytest.mark.parametrize("fallback", ["allow", "deny", "local"])
def test_it_is_no_outage(server: RedisServer, fallback: str) -> None:
    """No fallback answers for it, and nobody else falls back because of it."""
    server.flush()
    with Limiter("10/hour", f"{server.url}?fallback={fallback}&deadline=10s") as limiter:
        put(server, redis_key("10/hour"), *TYPES["list"])
        for _ in range(5):
            with pytest.raises(CorruptState):
                limiter.take("key")
            with pytest.raises(CorruptState):
                limiter.take_all([Charge("other"), Charge("key")])
        decision = limiter.take("other")
        assert (decision.degraded, decision.remaining) == (False, 9)


def test_a_ledger_that_nobody_can_read(server: RedisServer) -> None:
    engine = RedisEngine(server.url)
    ledger = engine.quota_ledger(parse("100/s"), "api", 1_000_000, 1_000_000)
    key = b"hg2:at:api:{key}"
    for value in (b"hello", b"1 2", b"1 2\nhello", b"1 2\nname 5 1 2\nrest", b"x y\n"):
        server.flush()
        server.call("SET", key, value)
        with pytest.raises(CorruptState, match=r"at:api:\{key\} holds a value"):
            ledger.grant("key", "holder", 5, 1_000_000)
        with pytest.raises(CorruptState, match=r"at:api:\{key\} holds a value"):
            ledger.leave("key", "holder")
        assert server.call("GET", key) == value
    engine.close()


def test_a_rulebook_that_is_none(server: RedisServer) -> None:
    for words in TYPES.values():
        put(server, b"hg2:rules", *words)
        before = server.call("DUMP", b"hg2:rules")
        archive, close = open_version_store(parse_engine_url(server.url))
        with pytest.raises(CorruptState, match="the key hg2:rules holds a value"):
            archive.add("{}", None)
        if words[0] != "HSET":
            for verb in (archive.stamp, archive.versions):
                with pytest.raises(CorruptState, match="the key hg2:rules holds a value"):
                    verb()
        close()
        assert server.call("DUMP", b"hg2:rules") == before


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        *(("hg2:scripts", kind) for kind in TYPES if kind != "hash"),
        *((f"lua:sha1:{name}", kind) for name in ("rate_limiter", "token_bucket") for kind in TYPES),
    ],
)
def test_publishing_names_the_key_that_is_not_ours(server: RedisServer, key: str, kind: str) -> None:
    server.flush()
    put(server, key.encode(), *TYPES[kind])
    before = server.call("DUMP", key)
    with pytest.raises(CorruptState, match=f"the key {key} holds a value that headgate did not write"):
        publish(server.url)
    assert server.call("DUMP", key) == before
    assert server.call("DBSIZE") == 1  # nothing else was stored


def test_an_older_script_is_replaced(server: RedisServer) -> None:
    server.flush()
    server.call("SET", "lua:sha1:rate_limiter", "e6014d4f6a0e4a7a9a1a43dd6a6c8fa0b8a2e3c1")
    rate_limiter, _ = publish(server.url)
    assert server.call("GET", "lua:sha1:rate_limiter") == rate_limiter.sha.encode()


def test_an_empty_string_is_not_ours(server: RedisServer) -> None:
    for text in LIMITS:
        server.flush()
        server.call("SET", redis_key(text), "")
        with Limiter(text, server.url) as limiter, pytest.raises(CorruptState):
            limiter.take("key")
        assert server.call("GET", redis_key(text)) == b""
