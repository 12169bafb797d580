"""Keys: what a dimension may be, and the text that a call is counted under, byte for byte as Redis keeps it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.engines.redis import keys
from headgate.errors import InvalidRule
from headgate.rules.attributes import Attributes
from headgate.rules.keys import Dimension, key_builder
from headgate.rules.match import Matcher
from headgate.rules.rule import Choice, Rule, Rulebook
from tests.rules.match_vectors import attributes_of, lines

DIMENSIONS = ("user", "sku", "plan")
VALUES = st.text(max_size=5) | st.sampled_from(
    ["|", "%", "%7C", "a|sku=b", "%FF", "\udcff", "\udc80", "\ud800", "é"]
)
ROWS = st.lists(VALUES, min_size=len(DIMENSIONS), max_size=len(DIMENSIONS))


@pytest.mark.parametrize("line", lines("keys.jsonl"))
def test_vectors(line: dict[str, Any]) -> None:
    key = tuple(Dimension.parse(text) for text in line["key"])
    rule = Rule(name="r", limit=Choice(()), key=key, missing=line["missing"])
    match = Matcher(Rulebook(rules=(rule,))).match
    attributes = attributes_of(line)
    found = [one.key for one in match(attributes)]
    assert found == ([] if line["expect"] is None else [line["expect"]])
    if isinstance(attributes, Attributes):
        assert [one.key for one in match(dict(attributes))] == found
    for text in found:
        head = keys.key_head("hg", line["algorithm"], line["name"])
        assert keys.build_key(head, text).decode("latin-1") == line["redis"]


@given(ROWS, ROWS, st.integers(1, len(DIMENSIONS)))
def test_two_calls_share_a_key_if_and_only_if_they_agree(one: list[str], other: list[str], count: int) -> None:
    form = key_builder([Dimension(name) for name in DIMENSIONS[:count]], blank=True)
    first = form(dict(zip(DIMENSIONS, one, strict=True)))
    second = form(dict(zip(DIMENSIONS, other, strict=True)))
    assert (first == second) is (one[:count] == other[:count])


@given(ROWS)
def test_a_key_can_always_be_written_as_utf8(row: list[str]) -> None:
    key = key_builder([Dimension(name) for name in DIMENSIONS], blank=True)(
        dict(zip(DIMENSIONS, row, strict=True))
    )
    assert key is not None
    assert key.encode().decode() == key


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_blanks_a_missing_dimension_leaves_no_key(count: int) -> None:
    row = dict.fromkeys(DIMENSIONS, "x")
    dimensions = [Dimension(name) for name in DIMENSIONS[:count]]
    form = key_builder(dimensions, blank=False)
    assert form(row) == "|".join(f"{name}=x" for name in DIMENSIONS[:count])
    for name in DIMENSIONS[:count]:
        assert form({**row, name: ""}) is None


def test_an_address_that_cannot_be_read_is_missing() -> None:
    dimension = Dimension.parse("address/24")
    assert key_builder([dimension], blank=False)({"address": "unix:"}) is None
    assert key_builder([dimension], blank=True)({"address": "unix:"}) == "address="


@pytest.mark.parametrize("text", ["address", "address/24"])
def test_a_hostname_of_recorded_traffic_counts_by_itself(text: str) -> None:
    build = key_builder([Dimension.parse(text)], blank=False)
    assert build({"address": "proxy7.example"}) == "address=proxy7.example"
    assert build({"address": "100%|odd"}) == "address=100%25%7Codd"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("user", Dimension("user")),
        ("tenant_id", Dimension("tenant_id")),
        ("header.X_Api_Key", Dimension("header.x-api-key")),
        ("argument.Q", Dimension("argument.Q")),
        ("cookie.sid", Dimension("cookie.sid")),
        ("address", Dimension("address", 32, 64)),
        ("address/24", Dimension("address", 24, 64)),
        ("address/24/56", Dimension("address", 24, 56)),
        ("address/32/128", Dimension("address", 32, 128)),
    ],
)
def test_a_dimension_is_read_and_written(text: str, meant: Dimension) -> None:
    assert Dimension.parse(text) == meant
    assert Dimension.parse(str(meant)) == meant
    assert str(meant) == meant.name + text.removeprefix("address") * (meant.name == "address")


@pytest.mark.parametrize(
    "text", ["address/33", "address/0", "address/24/129", "address/x", "address/24/56/1", "address/"]
)
def test_prefixes_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidRule, match=f'"{text}" is no way to count addresses: write address, address/24'):
        Dimension.parse(text)


@pytest.mark.parametrize(
    "text", ["", "User", "user/24", "7up", "a-b", "header.", "header.a b", "cookie.a|b", "x.y"]
)
def test_names_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidRule, match="is no attribute: write method, path"):
        Dimension.parse(text)
