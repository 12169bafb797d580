"""Attributes: one normal form for whatever a client sends or a framework hands over. Details: the vectors."""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidRule
from headgate.rules.attributes import (
    STANDARD_ATTRIBUTES,
    AttributeReader,
    Attributes,
    normalize_name,
    normalize_value,
    parse_attribute_name,
    request,
)

BYTES = st.binary(max_size=12) | st.text("/.%2eEfF?#&=+;[]: \t", max_size=12).map(str.encode)
PAIRS = st.lists(st.tuples(st.sampled_from([b"Host", b"Cookie", b"X-A", b"x_a"]) | BYTES, BYTES), max_size=4)
NAMES = st.sampled_from([*STANDARD_ATTRIBUTES, "header.x-a", "argument.q", "cookie.a"])


def test_a_request() -> None:
    attributes = request(
        "get",
        "http://u@Shop.example:8080/a//b/../c%2Fd?q=1&q=2&r=a+b%2B#f",
        [("X_Plan", " gold "), ("x-plan", "b"), ("Cookie", "a=1; b = 2"), ("Cookie", "a=3")],
        "::ffff:192.0.2.7",
        user="ada",
        plan=None,
        sku=7,
    )
    assert attributes == {
        "method": "GET",
        "path": "/a/c/d",
        "host": "shop.example",
        "address": "192.0.2.7",
        "user": "ada",
        "sku": "7",
        "header.x-plan": "gold, b",
        "header.cookie": "a=1; b = 2, a=3",
        "cookie.a": "1",
        "cookie.b": "2",
        "argument.q": "1",
        "argument.r": "a b+",
    }


def test_text_and_bytes_and_a_mapping_of_headers_are_the_same() -> None:
    as_text = request("GET", "/é?q=%C3%A9", {"X-A": "é"})
    as_bytes = request(b"GET", "/é?q=%C3%A9".encode(), {b"X-A": "é".encode()})
    assert as_text == as_bytes == {"method": "GET", "path": "/é", "argument.q": "é", "header.x-a": "é"}


@given(BYTES, BYTES, PAIRS, st.text(max_size=12))
def test_nothing_a_client_sends_is_an_error_and_normal_stays_normal(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], address: str
) -> None:
    attributes = request(method, target, headers, address)
    assert {name: normalize_value(name, value) for name, value in attributes.items()} == attributes
    assert AttributeReader(attributes)(dict(attributes)) == attributes
    path = attributes["path"].split("/")
    assert path[0] == ""
    assert path == ["", ""] or not {"", ".", ".."} & set(path[1:])


@given(st.text(max_size=12), st.text(max_size=12))
def test_escapes_change_nothing(segment: str, value: str) -> None:
    plain = request("GET", b"/a/" + quote(segment, safe="/").encode() + b"?q=" + quote(value).encode())
    every = "".join(f"%{byte:02x}" for byte in segment.encode())
    assert request("GET", f"/a/{every}?%71={''.join(f'%{byte:02X}' for byte in value.encode())}") == plain
    assert plain["argument.q"] == value


@pytest.mark.parametrize("length", [1, 127, 128, 70_000])
def test_names_and_hosts_are_read_alike_whether_they_are_remembered_or_not(length: int) -> None:
    for _ in range(2):
        attributes = request("GET", "/", [("X_" + "A" * length, "1"), ("Host", "B" * length + ".:80")])
        assert attributes["header.x-" + "a" * length] == "1"
        assert attributes["host"] == "b" * length


def test_half_a_character_is_kept_as_its_bytes() -> None:
    assert request("GET", "/%41\ud800")["path"] == "/A\udced\udca0\udc80"


def test_attributes_set_later_are_normalized() -> None:
    attributes = request("GET", "/a")
    attributes["path"] = "/a//b/"
    attributes["user"] = 5
    attributes["header.X_Plan"] = b"gold"
    attributes["beta"] = True
    attributes["plan"] = ""
    assert attributes == {
        "method": "GET",
        "path": "/a/b",
        "user": "5",
        "header.x-plan": "gold",
        "beta": "true",
        "plan": "",
    }
    attributes["user"] = None
    attributes["address"] = "unix:"
    attributes.update({"method": "put"}, beta=None)
    attributes.update()
    assert attributes == {"method": "PUT", "path": "/a/b", "header.x-plan": "gold", "plan": ""}
    assert isinstance(attributes, Attributes)


def test_a_reading_takes_what_is_used_and_nothing_else() -> None:
    read = AttributeReader(["path", "user", "header.x-a", "address"])
    given_: dict[str, Any] = {
        "path": "",
        "user": 5,
        "plan": "pro",
        "header.X_A": "1",
        "header.b": "2",
        "method": "get",
    }
    assert read(given_) == {"path": "", "user": "5", "header.x-a": "1"}
    assert read({"header.X-A": "b", "header.x-a": "a"}) == {"header.x-a": "a"}
    assert read({"header.x-a": "a", "header.X-A": "b"}) == {"header.x-a": "a"}
    assert read({"address": "unix:", "user": None}) == {"address": ""}


def test_header_names_are_folded_and_others_are_not() -> None:
    assert normalize_name("header.X_Api-KEY") == "header.x-api-key"
    assert normalize_name("argument.X_Y") == "argument.X_Y"
    assert normalize_name("header.É") == "header.É"  # in ASCII only, as every proxy does


@given(NAMES)
def test_names_that_can_be(name: str) -> None:
    assert parse_attribute_name(name) == name


@pytest.mark.parametrize("name", ["", "X", "a.b", "header.", "argument.a|b", "cookie.a=b", "a-b", "header.a b"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(InvalidRule, match="or a name of your own in small letters, such as tenant_id"):
        parse_attribute_name(name)
