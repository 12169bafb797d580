"""One meaning: what a rulebook makes of a call in Lua is, byte for byte, what it makes of it in Python.

The vectors hold both; then books, calls and bytes at random, answered by Python and by one luajit.
"""

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.engines.redis import keys
from headgate.gateway.bundle import case_orders
from headgate.rules import load
from headgate.rules.attributes import request
from headgate.rules.ip_networks import canonical
from headgate.rules.keys import Dimension, key_builder
from headgate.rules.match import Match, Matcher
from headgate.rules.rule import Choice, Rule, Rulebook
from headgate.rules.serialization import document
from tests.nginx.rules.luajit_process import LuajitProcess, raw_bytes
from tests.rules.match_vectors import lines
from tests.rules.random_rulebooks import CALLS, books


@pytest.mark.parametrize("line", lines("keys.jsonl"))
def test_keys(lua: LuajitProcess, line: dict[str, Any]) -> None:
    answer = lua.call_driver(
        "key", key=line["key"], algorithm=line["algorithm"], name=line["name"], **call_fields(line)
    )
    if line["expect"] is None:
        assert line["missing"] == "skip"
        assert answer["missing"]
    else:
        assert answer["key"] == raw_bytes(line["expect"]).decode("latin-1")
        assert answer["redis"] == line["redis"]
        assert answer["missing"] is None or line["missing"] == "one"


@pytest.mark.parametrize("line", lines("match.jsonl"))
def test_matches(lua: LuajitProcess, line: dict[str, Any]) -> None:
    matches = matched(lua, load.from_mapping(line["rules"]), line.get("cost"), **call_fields(line))
    expected = [{**one, "key": raw_bytes(one["key"]).decode("latin-1")} for one in line["expect"]]
    for one in matches:
        one["denied"] = one.pop("denial_reason") is not None
    assert matches == [
        {**one, "limits": texts(one["limits"]), "candidate": texts(one["candidate"])} for one in expected
    ]


@pytest.mark.parametrize("size", ["", "x", "-1", "1.5", "9007199254740993", "9" * 40])
def test_a_cost_that_cannot_be_is_refused_in_the_same_words(lua: LuajitProcess, size: str) -> None:
    book = load.from_mapping({"rules": [{"name": "upload", "cost": "size", "missing": "deny", "limit": "1/s"}]})
    [expected] = Matcher(book).match({"size": size})
    assert expected.denial_reason
    [matches] = matched(lua, book, None, attributes={"size": size})
    assert matches["denial_reason"] == expected.denial_reason


BYTES = st.text(st.sampled_from("ab/.%|?&=+;: \t@#[]_AZ2f5\x00\x7f\x80\xa9\xbf\xc3\xed\xa0\xff"), max_size=12).map(
    lambda text: text.encode("latin-1")
)
TARGETS = st.tuples(st.sampled_from([b"", b"/", b"/a", b"http://", b"http://h/"]), BYTES).map(b"".join)
HEADERS = st.lists(
    st.tuples(st.sampled_from([b"Host", b"Cookie", b"X_plan", b"x-PLAN"]), BYTES | BYTES.map(b"a=".__add__)),
    max_size=4,
)
DIMENSIONS = ("method", "path", "host", "header.x-plan", "argument.a", "cookie.a", "argument.", "header.cookie")


@settings(max_examples=300)
@given(BYTES, TARGETS, HEADERS)
def test_any_request_has_the_same_key(
    lua: LuajitProcess, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    key = key_builder([Dimension(name) for name in DIMENSIONS], blank=True)(request(method, target, headers)) or ""
    came = {"method": method, "target": target, "headers": headers}
    answer = lua.call_driver("key", key=DIMENSIONS, algorithm="slots", name=key[:9], request=came)
    assert answer["key"] == raw_bytes(key).decode("latin-1")
    assert answer["redis"] == keys.build_key(keys.key_head("hg", "slots", key[:9]), key).decode("latin-1")


@settings(max_examples=300)
@given(books(), st.lists(CALLS, min_size=1, max_size=5), st.sampled_from([None, 0, 1, 7]))
def test_any_book_means_the_same(
    lua: LuajitProcess, book: Rulebook, calls: list[dict[str, str]], cost: int | None
) -> None:
    book = Rulebook(rules=tuple(map(written, book.rules)))
    matcher = Matcher(book)
    for call in calls:
        expected = [match_fields(match) for match in matcher.match(call, cost)]
        assert matched(lua, book, cost, attributes=call) == expected


WORDS = st.sampled_from(["", "0", "0", "1", "db8", "ffff", "FFFF", "00ab", "12345", "g", "203.0.113.9"])
SIXES = st.tuples(st.lists(WORDS, max_size=9).map(":".join), st.sampled_from(["", "%", "%eth0", "%a%b", "%/"]))
FOURS = st.lists(st.sampled_from(["0", "00", "7", "010", "255", "256", "1000", "", "٣"]), max_size=5).map(".".join)
ADDRESSES = st.one_of(
    SIXES.map("".join), FOURS, st.ip_addresses().map(str), st.ip_addresses(v=6).map(lambda ip: ip.exploded)
)


@settings(max_examples=500)
@given(ADDRESSES, st.integers(1, 32), st.integers(1, 128))
def test_any_address_has_the_same_network(lua: LuajitProcess, address: str, v4: int, v6: int) -> None:
    dimension = Dimension("address", v4, v6)
    expected = key_builder([dimension], blank=True)({"address": canonical(address) or ""})
    answer = lua.call_driver(
        "key", key=[f"address/{v4}/{v6}"], algorithm="slots", name="r", attributes={"address": address}
    )
    assert answer["key"] == expected


@settings(max_examples=300)
@given(st.ip_addresses(), st.integers(0, 128), st.ip_addresses() | st.none())
def test_any_address_is_in_the_same_networks(lua: LuajitProcess, around: Any, length: int, other: Any) -> None:
    network = network_around(around, length)
    rule = {"name": "r", "limit": "1/s", "when": {"address": network}}
    book, address = load.from_mapping({"rules": [rule]}), {"address": str(other or around)}
    assert bool(matched(lua, book, None, attributes=address)) is bool(Matcher(book).match(address))


@given(st.binary(min_size=1, max_size=4))
def test_a_character_is_what_python_decodes(lua: LuajitProcess, text: bytes) -> None:
    assert lua.call_driver("character", text=text) == character(text)


def test_every_beginning_of_a_character(lua: LuajitProcess) -> None:
    for first in range(0x80, 0x100):
        for second in (0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
            for rest in (b"", b"\x80", b"\xbf\x80", b"\x80\xc0"):
                text = bytes([first, second]) + rest
                assert lua.call_driver("character", text=text) == character(text), text


@given(st.binary() | st.integers(50, 130).map(bytes))
def test_checksums(lua: LuajitProcess, text: bytes) -> None:
    assert lua.call_driver("sha256", text=text) == sha256(text).hexdigest()
    assert lua.call_driver("crc32", text=text) == crc32(text)


def call_fields(line: dict[str, Any]) -> dict[str, Any]:
    """Returns the call as the driver reads it: the texts of a request are bytes already."""
    if "attributes" in line:
        return {"attributes": line["attributes"]}
    came = line["request"]
    headers = [[text.encode("latin-1") for text in pair] for pair in came["headers"]]
    sent = {name: came[name].encode("latin-1") for name in ("method", "target")}
    return {"request": {**sent, "headers": headers, "address": came["address"]}}


def with_case_orders(book: Rulebook) -> dict[str, Any]:
    return {**document(book), "charge_options": {rule.name: {"cases": case_orders(rule)} for rule in book.rules}}


def matched(lua: LuajitProcess, book: Rulebook, cost: int | None, **call: Any) -> Any:
    return lua.call_driver("match", book=json.dumps(with_case_orders(book)), cost=cost, **call)


def match_fields(match: Match) -> dict[str, Any]:
    limits, candidate = ([limit.text for limit in limits or ()] for limits in (match.limits, match.candidate))
    return {
        **match._asdict(),
        "rule": match.rule.name,
        "limits": limits,
        "candidate": None if match.candidate is None else candidate,
    }


def texts(written: list[str] | None) -> Any:
    """Limits as a canonical document has them."""
    if not written:
        return written
    limit = document(load.from_mapping({"rules": [{"name": "r", "limit": written}]}))["rules"][0]["limit"]
    return limit if isinstance(limit, list) else [limit]


def written(rule: Rule) -> Rule:
    """The rule with choices as a document can have them: by one attribute, each case one text."""
    cost, candidate = rule.cost and by_text(rule.cost), rule.candidate and by_text(rule.candidate)
    return replace(rule, limit=by_text(rule.limit), cost=cost, candidate=candidate)


def by_text(choice: Choice[Any]) -> Choice[Any]:
    cases: dict[str, Any] = {}
    for test, value in choice.cases:
        by = next(iter(cases.values()))[0].attribute if cases else test.attribute
        if isinstance(test.expected, tuple) and test.attribute == by:
            cases.setdefault(test.expected[0], (replace(test, expected=test.expected[:1]), value))
    return Choice(choice.otherwise, tuple(cases.values()))


def network_around(around: Any, length: int) -> str:
    """A network around an address, of at most as many bits as it has."""
    bits = around.max_prefixlen
    length = min(length, bits)
    return f"{type(around)(int(around) >> bits - length << bits - length)}/{length}"


def character(text: bytes) -> int | None:
    """Returns how many bytes Python's strict decoder takes for the first character."""
    for length in range(1, min(4, len(text)) + 1):
        try:
            text[:length].decode()
        except UnicodeDecodeError:
            continue
        return length
    return None
