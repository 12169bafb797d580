"""Keys in Redis: any text is valid, no two collide, and each expires exactly when it no longer matters."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US, Limit
from headgate.engines.redis import keys as redis_keys
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse
from headgate.limiter import Limiter
from tests.servers import BASE_US, RedisServer

# Any text at all, and texts that try to look like ours.
ODD = [
    "{",
    "}",
    "{}",
    ":",
    "%",
    "%25",
    "%#",
    "\n",
    "\r\n",
    " ",
    "\0",
    "ß",
    "键",
    "\ud800",
    "a}b",
    "x:{y}",
    "é" * 100,
]
texts = st.text(st.characters(exclude_categories=()), min_size=1, max_size=12) | st.sampled_from(ODD)
pieces = st.lists(st.sampled_from([*ODD, "a", "b", "%7D", "%23"]), min_size=1, max_size=4).map("".join)
words = texts | pieces


LIMIT = parse("1/s")


def redis_key(name: str, key: str, limit: Limit = LIMIT) -> bytes:
    return RequestBuilder(limit, name, "hg").key(key)


def hash_tag(key: bytes) -> bytes:
    """Returns the part that Redis Cluster hashes: between the first { and the next }, if that is not empty."""
    opened = key.index(b"{")
    return key[opened + 1 : key.index(b"}", opened)]


@given(words, words, words, words)
@example("a", "b:{c", "a:{b", "c")
@example("a", "}", "a", "%7D")
@example("%3A", "k", ":", "k")
def test_no_two_ever_meet(name: str, key: str, other_name: str, other: str) -> None:
    alike = (name, key) == (other_name, other)
    assert (redis_key(name, key) == redis_key(other_name, other)) == alike


@given(words, words)
def test_the_hash_tag_is_the_whole_key(name: str, key: str) -> None:
    whole = redis_key(name, key)
    assert hash_tag(whole) == redis_keys.escape_key(key)
    assert whole.endswith(b":{" + hash_tag(whole) + b"}")
    assert whole.startswith(b"hg2:")
    assert not re.search(rb"[\s\x00]", whole)


def test_different_algorithms_never_meet() -> None:
    """Each keeps something else; under one name, too, it keeps it elsewhere."""
    texts = ["1/s", "1/s queue 1", "1/s fixed", "1/s sliding", "1/s log", "1/s smooth", "1 slot"]
    assert len({redis_key("name", "key", parse(text)) for text in texts}) == len(texts)


@given(words, words, words)
def test_all_counts_of_one_key_lie_in_one_slot(name: str, other_name: str, key: str) -> None:
    assert hash_tag(redis_key(name, key)) == hash_tag(redis_key(other_name, key))


@given(words)
def test_a_key_is_hashed_only_above_200_bytes(key: str) -> None:
    raw = key.encode("utf-8", "surrogatepass")
    assert redis_keys.escape_key(key).startswith(b"%#") == (len(raw) > 200)


def test_around_200_bytes() -> None:
    keys = ["k" * 199, "k" * 200, "k" * 201, "k" * 65_536, "é" * 100, "é" * 100 + "k"]
    assert [len(redis_keys.escape_key(key)) for key in keys] == [199, 200, 66, 66, 200, 66]
    digest = sha256(b"k" * 201).hexdigest()
    assert redis_keys.escape_key("k" * 201) == b"%#" + digest.encode()
    # A key that spells a hash is not that hash.
    assert redis_keys.escape_key(f"%#{digest}") != redis_keys.escape_key("k" * 201)


@pytest.mark.parametrize("prefix", ["", "a b", "a:b", "{a", "a%", "a\n"])
def test_a_prefix_that_could_be_mistaken_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidRule, match="prefix"):
        RequestBuilder(LIMIT, "name", prefix)


@pytest.mark.parametrize("key", [*ODD, "k" * 199, "k" * 200, "k" * 201, "k" * 65_536, "k" * 65_537])
def test_any_text_is_a_key(key: str, server: RedisServer) -> None:
    with Limiter("2/hour", RedisEngine(server.unix_url)) as limiter:
        assert limiter.take(key, 2)
        assert not limiter.take(key)
        assert limiter.take(key + "'", 2)
        limiter.reset(key)
        assert limiter.take(key)
        assert limiter.take_all([(key, "5/hour"), (key, "3/hour log")])


def test_prefixes_keep_programs_apart(server: RedisServer) -> None:
    with Limiter("1/hour", server.url) as ours, Limiter("1/hour", server.url, prefix="other") as theirs:
        assert ours.take("key")
        assert theirs.take("key")
        assert not ours.take("key")
    ours_key, theirs_key = sorted(_keys(server))
    assert (ours_key[:4], theirs_key) == (b"hg2:", b"other2:" + ours_key[4:])


# What is taken at BASE_US, which is a whole second, and how long the state matters after it.
LIVES = [
    ("10/s", 3, 0.3),
    ("10/s", 10, 1.0),
    ("7/s burst 9", 1, 0.143),
    ("1/day", 1, 86_400.0),
    ("10/s queue 9", 4, 0.4),
    ("10/s fixed", 1, 1.0),
    ("10/minute fixed", 1, 40.0),
    ("10/s sliding", 1, 1.0),
    ("10/s log", 1, 1.0),
    ("10/s smooth", 1, 86_400.1),
    ("10/s smooth warmup 5s", 1, 0.296 + 0.1),
    ("2 slots ttl 7s", 1, 7.0),
]


@pytest.mark.parametrize(("text", "cost", "seconds"), LIVES)
def test_a_key_lives_as_long_as_it_matters(
    text: str, cost: int, seconds: float, driven_server: RedisServer
) -> None:
    with Limiter(text, RedisEngine(driven_server.unix_url)) as limiter:
        if "slots" in text:
            limiter.acquire("key")
        else:
            taken = limiter.take("key", cost)
            # Where the count says itself when it is as if never used, that is when its key ends.
            if text != "10/s smooth":
                assert taken.reset_after == pytest.approx(seconds, abs=0.15)
                seconds = taken.reset_after
        (key,) = _keys(driven_server)
        life_ms = driven_server.call("PTTL", key)
        assert isinstance(life_ms, int)
        # A clock that swings may read that much less again; the numbers of slots are remembered for a day.
        seconds = 86_400 if "slots" in text else seconds + MAX_CLOCK_SWING_US / 1_000_000
        assert -1e-6 <= life_ms / 1000 - seconds <= 0.0011
        driven_server.clock.advance_us(round(seconds * 1_000_000) + 2000)
        assert _keys(driven_server) == []


@pytest.mark.parametrize(
    "text", ["1/day", "1/day queue 3", "1/day fixed", "1/day sliding", "1/day log", "1/day smooth"]
)
def test_a_reservation_lives_until_it_does_not_matter(text: str, driven_server: RedisServer) -> None:
    text = text.replace("1/day queue", "1/1000s queue")
    with Limiter(text, RedisEngine(driven_server.unix_url)) as limiter:
        *_, last = [limiter.reserve("key") for _ in range(5)]
        (key,) = _keys(driven_server)
        life_ms = driven_server.call("PTTL", key)
        assert isinstance(life_ms, int)
        assert last.delay * 1000 <= life_ms <= HORIZON_US // 1000 * 2
        assert life_ms / 1000 >= last.decision.reset_after


def test_every_key_of_a_busy_day_has_an_end(driven_server: RedisServer) -> None:
    limits = [
        "10/s",
        "6/minute queue 5",
        "9/day fixed",
        "9/month fixed in Asia/Shanghai",
        "9/s sliding",
        "9/s log",
    ]
    limits += ["3/s smooth", "3/s smooth warmup 2s"]
    for text in limits:
        with Limiter(text, RedisEngine(driven_server.unix_url, deadline=30)) as limiter:
            for number in range(30):
                taken = limiter.take(f"key {number % 5}", number % 3)
                limiter.reserve(f"key {number % 5}", timeout=100)
                limiter.refund(taken, 1)
                driven_server.clock.set_us(BASE_US + number * 37_501)
    assert len(_keys(driven_server)) > 20
    for key in _keys(driven_server):
        life = driven_server.call("PTTL", key)
        assert isinstance(life, int)
        assert life >= 0, key


def _keys(server: RedisServer) -> list[bytes]:
    names = server.call("KEYS", "*")
    assert isinstance(names, list)
    return [key for key in names if isinstance(key, bytes)]
