"""An engine's URL with a wrong part is refused by a sentence that names this part, and shows no login."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidRule, Limiter, open_async_engine, open_engine

RULES = {"rules": [{"name": "all", "limit": "3/minute"}]}
PASSWORD = "special characters of the password"

PORT = r"^The port in the engine's URL {}://… is not a number from 1 to 65535\. Write {}://user:"
HOST = r"^The host in the engine's URL {}://… cannot be read\. Write {}://user:.*an IPv6 address in brackets"
MISSING = r"^The engine's URL {}://… lacks a host\. Write {}://user:"
PATH = r"^The path of the engine's URL {}://… is not the number of a database\. Write {}://user:"
HASH = r"^The engine's URL {}://… has a # and something behind it\. Leave it out, or write .* as %23: {}://user:"
SOCKET = r"^The engine's URL {}://… needs the path of a socket, which begins with /\. Write {}://user:"
SEVERAL = (
    r"^{}:// is one server, and this URL has several hosts\. "
    r"Write {}\+cluster://user:password@host:6379,host:6380 or .*\+sentinel://user:password@host:26379,host:26379/name-of-the-master/0\.$"
)
CLUSTER = r"^A cluster has no database but 0: write {}://host:6379 without a number\.$"

PARTS = [
    ("redis://h:99999", PORT),
    ("redis://h:0", PORT),
    ("redis://h:port/0", PORT),
    ("redis://me:hunter2@h:-1", PORT),
    ("redis://me:hunter2", PORT),
    ("redis+cluster://a:1,b:70000", PORT),
    ("redis+sentinel://a:x/m", PORT),
    ("redis://[::1/0", HOST),
    ("redis://::1:6379", HOST),
    ("redis+cluster://a,::1", HOST),
    ("redis+cluster://", MISSING),
    ("redis+cluster://a,,b", MISSING),
    ("redis+sentinel:///m", MISSING),
    ("redis://h:6379/abc", PATH),
    ("redis://h:6379/0/1", PATH),
    ("redis://h/-1", PATH),
    ("redis://h/\u0665", PATH),
    ("redis://me:hunter2@h/zero", PATH),
    ("redis://h#frag", HASH),
    ("redis://h:6379/0#frag", HASH),
    ("redis://h?db=1#frag", HASH),
    ("unix:///a#b", HASH),
    ("unix://h/a/socket", SOCKET),
    ("unix://", SOCKET),
    ("redis+unix://", SOCKET),
    ("redis://h1,h2:6379", SEVERAL),
    ("rediss://me:hunter2@h1:1,h2:2/0", SEVERAL),
    ("valkey://h1,h2", SEVERAL),
    ("redis+cluster://h/abc", CLUSTER),
    ("redis+cluster://h/2", CLUSTER),
]


@pytest.mark.parametrize(("url", "sentence"), PARTS, ids=[url for url, _ in PARTS])
def test_the_part_that_is_wrong_is_named(url: str, sentence: str) -> None:
    scheme = url.partition("://")[0].replace("+", r"\+")
    with pytest.raises(InvalidRule, match=sentence.format(*[scheme] * sentence.count("{}"))) as refused:
        open_engine(url)
    assert "hunter2" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["redis://me:hunter2/3@h/0", "redis://me:99?hunter2@h/0", "redis://me:hunter2#3@h", "redis+cluster://a:b/c@h"],
)
def test_a_password_that_is_not_escaped(url: str) -> None:
    with pytest.raises(InvalidRule, match=PASSWORD) as refused:
        open_engine(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["memory://x", "memory://host/0", "memory:///", "memory://h:1", "memory://me:hunter2@h"]
)
def test_memory_has_no_address(url: str) -> None:
    for make in (open_engine, open_async_engine, lambda url: Limiter.from_rules(RULES, url)):
        with pytest.raises(InvalidRule) as refused:
            make(url)
        assert str(refused.value) == "memory:// has nothing behind it: it counts in this process. Write memory://."


NODES = r"^nodes has no effect without fallback=local\. Write fallback=local&nodes=4\.$"


@pytest.mark.parametrize("options", ["nodes=4", "fallback=allow&nodes=4", "deadline=1s&fallback=deny&nodes=4"])
def test_nodes_without_a_fallback_that_shares(options: str) -> None:
    url = f"redis://127.0.0.1:1?{options}"
    makers: list[Any] = [
        *(open_engine, open_async_engine),
        *(lambda url: Limiter("1/s", url), lambda url: AsyncLimiter("1/s", url)),
    ]
    for make in makers:
        with pytest.raises(InvalidRule, match=NODES):
            make(url)
    with pytest.raises(InvalidRule, match=NODES):
        open_engine("redis://127.0.0.1:1", nodes=4)


def test_nodes_with_an_effect() -> None:
    url = "redis://127.0.0.1:1?nodes=4"
    open_engine(url, fallback="local").close()
    open_engine(f"{url}&fallback=local").close()
    open_engine(url, ruled=True).close()
    Limiter.from_rules(RULES, url).close()
    open_engine("memory://", nodes=4).close()


@pytest.mark.parametrize("name", ["deadline", "prefetch"])
def test_lengths_of_time(name: str) -> None:
    def refusal(value: Any) -> str:
        with pytest.raises(InvalidRule) as refused:
            open_engine("redis://127.0.0.1:1", **{name: value})
        return str(refused.value)

    assert refusal("on") == (
        f'{name}: "on" is not a length of time. Write a number and a unit, such as 50ms, 30s or 10m.'
    )
    assert refusal("yes") == (
        f'{name}: "yes" is not a length of time. Write a number and a unit, such as 50ms, 30s or 10m.'
    )
    assert refusal("5 minits").endswith("Did you mean 5 minute?")
    for nothing in ("0s", "0", "0.0ms", "0 minutes"):
        assert refusal(nothing) == (
            f'{name}: "{nothing}" must be more than 0. Write a number and a unit, such as 50ms, 30s or 10m.'
        )


def test_a_rules_length_of_time_is_no_switch() -> None:
    with pytest.raises(InvalidRule) as refused:
        Limiter.from_rules({"rules": [{"name": "all", "limit": "9/s", "prefetch": "yes"}]})
    assert "Did you mean" not in str(refused.value)
