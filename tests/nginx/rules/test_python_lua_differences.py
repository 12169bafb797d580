"""Rules and calls where Python and Lua differ most easily: both answer alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.rules import load
from headgate.rules.condition import All, Condition, Test
from headgate.rules.ip_networks import canonical
from headgate.rules.keys import Dimension
from headgate.rules.match import Matcher
from headgate.rules.matching.compile_rule import bucket_of
from headgate.rules.rule import Choice, Modes, Rule, Rulebook
from tests.nginx.rules.luajit_process import LuajitProcess
from tests.nginx.rules.test_match_vectors import match_fields, matched

INNER = All((Test("path", ("/{x}/*",)), Test("x", ("a",))))
NESTED = All((INNER, Test("path", ("/*/{x}",))))  # the test sees what was captured last


@pytest.mark.parametrize(
    ("when", "call"),
    [
        (NESTED, {"path": "/a/b"}),
        (NESTED, {"path": "/b/a"}),
        (Test("user", ("a*b*b",)), {"user": "ab"}),
        (Test("user", ("a*b*b",)), {"user": "abb"}),
        (Test("user", ("%d.*[",)), {"user": "%d.x["}),
        (Test("user", ("%d.*[",)), {"user": "7.x["}),
        (Test("user", ("*\U0001f600",)), {"user": "a\U0001f600"}),
        (Test("user", ("*\U0001f600",)), {"user": "a\U0001f601"}),
        (Test("user", ('"\\/\x7f\x00\n',)), {"user": '"\\/\x7f\x00\n'}),
    ],
)
def test_a_condition(lua: LuajitProcess, when: Condition, call: dict[str, str]) -> None:
    book = Rulebook(rules=(Rule(name="r", limit=Choice(()), when=when),))
    assert matched(lua, book, None, attributes=call) == [
        match_fields(match) for match in Matcher(book).match(call)
    ]


@given(st.permutations(["a*", "*b", "*c*", "a*c", "*ab", "b*"]), st.text("abc", max_size=5))
def test_of_cases_the_first_that_holds_is_taken(lua: LuajitProcess, cases: list[str], plan: str) -> None:
    rates = {case: f"{place}/s" for place, case in enumerate(cases, 1)}
    limit = {"by": "plan", "cases": rates, "otherwise": "99/s"}
    try:
        book = load.from_mapping({"rules": [{"name": "r", "limit": limit}]})
    except ValueError:
        return  # a case that is never reached
    call = {"plan": plan}
    assert matched(lua, book, None, attributes=call) == [
        match_fields(match) for match in Matcher(book).match(call)
    ]


@given(st.text(min_size=1, max_size=3, alphabet="abcdefgh0123456789"), st.sampled_from([0, 1]))
def test_a_key_is_on_the_same_side_of_every_border(lua: LuajitProcess, plan: str, above: int) -> None:
    place = bucket_of("r", f"path=/{plan}")
    key, mode = (Dimension("path"),), Modes(place + above, 0)
    book = Rulebook(rules=(Rule(name="r", limit=Choice(()), key=key, mode=mode),))
    assert len(matched(lua, book, None, attributes={"path": f"/{plan}"})) == above


@pytest.mark.parametrize(
    "address",
    [
        "1::2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8::", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", ":::", "1:", ":1",
        "::1%", "::1%a", "::1%a%", "1.2.3.4%a", "::ffff:1.2.3.4%a", "::fffe:1.2.3.4",
        "1:2:3:4:5:6:1.2.3.4", "1.2.3.4::", "::1.2.3.4:5",
        *("fe80::1%" + letter * times for letter in ("a", "\u00e9", "\udcff", "\U0001f600") for times in (56, 57)),
    ],
)  # fmt: skip
def test_an_address(lua: LuajitProcess, address: str) -> None:
    answer = lua.call_driver(
        "key", key=["address/32/128"], algorithm="slots", name="r", attributes={"address": address}
    )
    assert answer["key"] == f"address={canonical(address) or ''}"
