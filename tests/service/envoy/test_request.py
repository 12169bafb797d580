"""Descriptors become attributes and limits; without a server."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.service.envoy.messages import RateLimitRequest
from headgate.service.envoy.request import parse_descriptors

Entries = list[tuple[str, str]]

SECOND = 1


def request(*descriptors: Entries, domain: str = "d", **more: Any) -> Any:
    made = RateLimitRequest(domain=domain)
    for entries in descriptors:
        made.descriptors.add(entries=[{"key": key, "value": value} for key, value in entries], **more)
    return made


def attributes(*entries: tuple[str, str]) -> dict[str, Any]:
    (question,) = parse_descriptors(request(list(entries)))
    assert question.call.attributes["domain"] == "d"
    assert question.call.attributes["descriptor"] == "/".join(key for key, _ in entries)
    return {
        name: value for name, value in question.call.attributes.items() if name not in ("domain", "descriptor")
    }


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([("user", "ann")], {"user": "ann"}),
        ([("X-Plan", "pro")], {"x_plan": "pro"}),
        ([("domain", "x")], {"descriptor_domain": "x"}),
        ([("remote_address", "192.0.2.7")], {"remote_address": "192.0.2.7", "address": "192.0.2.7"}),
        (
            [("remote_address", "192.0.2.7"), ("address", "192.0.2.9")],
            {"remote_address": "192.0.2.7", "descriptor_address": "192.0.2.9", "address": "192.0.2.9"},
        ),
        (
            [("address", "192.0.2.9"), ("remote_address", "192.0.2.7")],
            {"remote_address": "192.0.2.7", "descriptor_address": "192.0.2.9", "address": "192.0.2.9"},
        ),
        ([(":path", "/a%20b//c?d=1")], {"descriptor_path": "/a%20b//c?d=1", "path": "/a b/c"}),
        ([("method", "GET")], {"descriptor_method": "GET", "method": "GET"}),
        ([(":authority", "example.com")], {"authority": "example.com", "host": "example.com"}),
        ([("host", "example.com")], {"descriptor_host": "example.com", "host": "example.com"}),
        (
            [("generic_key", "a"), ("generic_key", "b"), ("generic_key", "c")],
            {"generic_key": "a", "generic_key_2": "b", "generic_key_3": "c"},
        ),
        ([("path", "/a"), ("path", "/b")], {"descriptor_path": "/a", "path": "/a", "descriptor_path_2": "/b"}),
    ],
)
def test_entries_are_attributes(entries: Entries, found: dict[str, str]) -> None:
    assert attributes(*entries) == found


def test_a_second_entry_hides_nothing_that_is_called_so_itself() -> None:
    assert attributes(("a_2", "x"), ("a", "y"), ("a", "z")) == {"a_2": "x", "a": "y", "a_3": "z"}


words = st.text(alphabet="ab|=%", max_size=3)
entries = st.lists(st.tuples(words, words), max_size=3)


@example([("a", "b|c=d")], [("a", "b"), ("c", "d")], "d", "d")
@example([("a=b", "c")], [("a", "b=c")], "d", "d")
@example([("a", "%7C")], [("a", "|")], "d", "d")
@given(entries, entries, words.map(lambda word: word + "d"), words.map(lambda word: word + "d"))
def test_two_descriptors_with_separate_limits_never_share_a_count(
    one: Entries, two: Entries, here: str, there: str
) -> None:
    limit = {"requests_per_unit": 1, "unit": SECOND}
    (first,) = parse_descriptors(request(one, domain=here, limit=limit))
    (second,) = parse_descriptors(request(two, domain=there, limit=limit))
    assert (first.call.key == second.call.key) == ((one, here) == (two, there))


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=6))
def test_whatever_is_sent_is_no_error_and_nothing_is_lost(sent: Entries) -> None:
    (question,) = parse_descriptors(request(sent))
    kept = list(question.call.attributes.values())
    for _, value in sent:
        assert value in kept
