"""Options of an engine, by its URL or by keywords. (What nginx reads: tests/nginx/engines/redis/test_url.py)"""

import inspect
import ssl
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, open_async_engine, open_engine
from headgate.engines.layers.denial_cache import AsyncDenialCacheEngine, DenialCacheEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.redis.topology import topology
from headgate.engines.url import KeywordOptions
from headgate.engines.url_options import EngineOptions, split_url_options
from headgate.errors import InvalidRule

NOBODY = "redis://me:hunter2@127.0.0.1:1/0"
RULES: dict[str, Any] = {"rules": [{"name": "r", "limit": "10/s"}]}


def refusal(url: Any, **given: Any) -> str:
    """The sentence by which both kinds of engines are refused."""
    with pytest.raises(InvalidRule) as refused:
        open_engine(url, **given)
    with pytest.raises(InvalidRule) as awaited:
        open_async_engine(url, **given)
    assert str(awaited.value) == str(refused.value)
    assert "hunter2" not in f"{refused.value!r}"
    return str(refused.value)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("fail_open=true", 'has "fail_open", which is no option. Write fallback=allow.'),
        ("cache=on", 'has "cache", which is no option. Write denial_cache=on.'),
        ("memo=on", 'has "memo", which is no option. Write denial_cache=on.'),
        ("lease=100ms", 'has "lease", which is no option. Write prefetch=100ms.'),
        ("lease_units=5", 'has "lease_units", which is no option. Write prefetch_units=500.'),
        ("timeout=50ms", 'has "timeout", which is no option. Write deadline=50ms'),
        ("socket_timeout=1", 'has "socket_timeout", which is no option. Write deadline=50ms'),
        ("socket_connect_timeout=1", "Write deadline=50ms"),
        ("password=hunter2", "Write them in front of the host: redis://user:password@host:6379/0."),
        ("dedline=1s", "Did you mean deadline?"),
        ("prefetchunits=5", "Did you mean prefetch_units?"),
        ("max_connections=5", "Known: deadline, fallback, denial_cache, prefetch, prefetch_units, nodes, db."),
        ("deadline=1s&deadline=2s", "The engine's URL has deadline twice. Write it once."),
        ("ssl_ca_certs=/a", 'has "ssl_ca_certs", which belongs to rediss://.'),
        ("deadline=50", 'deadline: "50" is not a length of time. It has no unit: write 50ms or 50s.'),
        ("prefetch=100", 'prefetch: "100" is not a length of time. It has no unit: write 100ms or 100s.'),
        ("deadline=50+millis", "Did you mean 50 milli"),
        ("prefetch_units=500", "prefetch_units has no effect without prefetch."),
        ("prefetch=1s&prefetch_units=0", "prefetch_units is a whole number from 1 to 2^53, not '0'."),
    ],
)
def test_options_without_effect_are_refused(query: str, sentence: str) -> None:
    assert sentence in refusal(f"{NOBODY}?{query}")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"deadline": "50"}, 'deadline: "50" is not a length of time. It has no unit: write 50ms or 50s.'),
        ({"deadline": "0.05"}, "It has no unit"),
        ({"deadline": 0}, "deadline: A length of time must be between one microsecond and"),
        ({"deadline": True}, "must be a number of seconds, not True"),
        ({"prefetch": -1}, "prefetch: A length of time must be between one microsecond and"),
        ({"deadline": "400d"}, "deadline is longer than 366 days."),
        ({"fallback": "maybe"}, "fallback is allow, deny or local, not 'maybe'."),
        ({"nodes": 0}, "nodes is a whole number from 1 to 1,000,000, not 0."),
        ({"nodes": True}, "nodes is a whole number"),
        ({"nodes": 2.5}, "nodes is a whole number"),
        ({"prefetch_units": 5}, "prefetch_units has no effect without prefetch."),
        ({"denial_cache": "perhaps"}, "denial_cache is on or off, not 'perhaps'."),
    ],
)
def test_keywords_that_cannot_be(given: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(NOBODY, **given)


def test_keywords_are_seconds_or_a_text_with_its_unit_and_go_before_the_url() -> None:
    chosen = split_url_options(f"{NOBODY}?deadline=1s&nodes=3&fallback=deny")[1]
    options = chosen.with_keywords(KeywordOptions(0.25, None, True, "100ms", 500, None)._asdict())
    assert options == EngineOptions(0.25, "deny", True, 0.1, 500, 3)
    for deadline in (0.25, "250ms", "0.25 s"):
        engine: Any = open_engine(f"{NOBODY}?deadline=1s", deadline=deadline)
        assert engine.deadline == 0.25
    assert split_url_options("redis://h?deadline=1.5s&prefetch=20ms&prefetch_units=7&denial_cache=on")[
        1
    ] == EngineOptions(1.5, None, True, 0.02, 7)


def test_options_of_tls_are_in_force() -> None:
    def tls(query: str) -> ssl.SSLContext:
        address = topology(split_url_options(f"rediss://h?{query}")[0]).node(b"")
        assert address is not None
        assert address.tls is not None
        return address.tls

    assert tls("ssl_check_hostname=on").check_hostname
    assert not tls("ssl_check_hostname=off").check_hostname
    assert tls("ssl_min_version=1.2").minimum_version is ssl.TLSVersion.TLSv1_2
    assert tls("ssl_min_version=1.3").minimum_version is ssl.TLSVersion.TLSv1_3
    assert tls("ssl_cert_reqs=none").verify_mode is ssl.CERT_NONE
    assert tls("").verify_mode is ssl.CERT_REQUIRED


def test_all_options_are_spelled_out() -> None:
    names = set(EngineOptions.__dataclass_fields__)
    assert names == set(KeywordOptions._fields)
    for opening in (open_engine, open_async_engine):
        assert names < set(inspect.signature(opening).parameters)


def test_memory_takes_no_options_but_a_program_may_say_them_for_either() -> None:
    for query in ("deadline=50ms", "fallback=local", "nodes=4", "denial_cache=on", "unheard=of", "a=hunter2@b"):
        assert refusal(f"memory://?{query}").startswith("memory:// takes no options: it counts in this process")
    engine: Any = open_engine("memory://", deadline="50ms", nodes=4)
    assert isinstance(engine, MemoryEngine)


@pytest.mark.parametrize("query", ["prefetch=100ms", "prefetch=100ms&prefetch_units=5"])
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_rulebook_says_rule_by_rule_what_is_prefetched(kind: Any, query: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        kind.from_rules(RULES, f"{NOBODY}?{query}")
    assert str(refused.value) == (
        "The engine's URL has prefetch, which a rulebook says rule by rule. Write prefetch: 100ms into the rule, "
        "or into defaults."
    )


def test_a_denial_cache_of_the_url_serves_rulebooks_too() -> None:
    engine: Any = Limiter.from_rules(RULES, f"{NOBODY}?denial_cache=on&nodes=1").engine
    assert isinstance(engine.inner, DenialCacheEngine)
    awaited: Any = AsyncLimiter.from_rules(RULES, f"{NOBODY}?denial_cache=on&nodes=1").engine
    assert isinstance(awaited.inner, AsyncDenialCacheEngine)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("localhost:6379", '"localhost:6379" is not an engine URL. Write redis://localhost:6379, or memory://.'),
        (
            "me:hunter2@cache:6379/2?a=hunter2",
            '"cache:6379/2" is not an engine URL. Write redis://cache:6379/2, or',
        ),
        ("memory", '"memory" is not an engine URL. Write redis://host:6379/0, or memory://.'),
        ("me:hunter2@redis://h", '"redis://h" is not an engine URL.'),
        (
            "rediz://h",
            "rediz://… is not an engine URL. Write redis://host:6379/0, or memory://. Did you mean redis://?",
        ),
        (None, "An engine's URL is a text such as redis://host:6379/0, not a NoneType."),
    ],
)
def test_an_invalid_url_is_quoted_without_its_password(url: Any, sentence: str) -> None:
    assert refusal(url).startswith(sentence)
