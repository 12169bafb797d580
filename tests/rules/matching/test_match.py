"""Matching a call against a rulebook: vectors, and the law that matching and explaining agree."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidRule
from headgate.limit_syntax import parse_all
from headgate.rules import load
from headgate.rules.attributes import Attributes, segments
from headgate.rules.condition import All, Test
from headgate.rules.keys import Dimension
from headgate.rules.match import Match, Matcher
from headgate.rules.matching.rule_index import MAX_UNINDEXED, IndexEntry, RuleIndex
from headgate.rules.rule import Choice, Rule, Rulebook
from tests.rules.match_vectors import attributes_of, lines
from tests.rules.random_rulebooks import CALLS, books, calls_at_random, large_book


@pytest.mark.parametrize("line", lines("match.jsonl"))
def test_vectors(line: dict[str, Any]) -> None:
    matcher = Matcher(load.from_mapping(line["rules"]))
    attributes, cost = attributes_of(line), line.get("cost")
    matches = list(matcher.match(attributes, cost))
    assert [match_fields(match) for match in matches] == [expected(one) for one in line["expect"]]
    assert [one.match for one in matcher.explain(attributes, cost) if one.applies] == matches
    if isinstance(attributes, Attributes):
        assert list(matcher.match(dict(attributes), cost)) == matches


def match_fields(match: Match) -> dict[str, Any]:
    fields = match._asdict()
    is_denied = fields.pop("denial_reason") is not None
    return {**fields, "rule": match.rule.name, "denied": is_denied}


def expected(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "limits": limits(line["limits"]), "candidate": limits(line["candidate"])}


def limits(texts: list[str] | None) -> Any:
    return None if texts is None else tuple(limit for text in texts for limit in parse_all(text))


@settings(max_examples=80)
@given(books(), CALLS, st.none() | st.integers(0, 3))
def test_matching_and_explaining_agree(book: Rulebook, call: dict[str, str], cost: int | None) -> None:
    matcher = Matcher(book)
    matches = list(matcher.match(call, cost))
    explained = matcher.explain(call, cost)
    assert [one.match for one in explained if one.applies] == matches
    assert [one.rule for one in explained] == list(book.rules)
    assert all(one.why for one in explained)
    assert list(matcher.match(Attributes(call), cost)) == matches


@pytest.mark.parametrize("seed", range(60))
def test_they_agree_in_large_books(seed: int) -> None:
    matcher = Matcher(large_book(seed))
    for call in calls_at_random(seed):
        assert [one.match for one in matcher.explain(call) if one.applies] == list(matcher.match(call))


def test_rules_of_one_path_are_indexed_by_their_other_conditions() -> None:
    rules = tuple(
        rule(
            f"r{number}",
            All((Test("path", ("/api/{kind}/**",)), Test("user", (f"u{number}",)), Test("plan", ("a",)))),
        )
        for number in range(3 * MAX_UNINDEXED)
    )
    others = tuple(rule(f"p{number}", Test("path", (f"/{number}/**",))) for number in range(MAX_UNINDEXED))
    crowd = tuple(
        rule(f"c{number}", All((Test("host", ("h",)), Test("path", ("/x",)))))
        for number in range(MAX_UNINDEXED + 1)
    )
    plans = tuple(
        rule(f"q{number}", All((Test("host", ("g",)), Test("plan", ("b",)))))
        for number in range(MAX_UNINDEXED + 1)
    )
    matcher = Matcher(Rulebook(rules=(*others, *rules, *crowd, *plans)))
    matches = matcher.match({"path": "/api/k/1", "user": "u5", "plan": "a"})
    assert [match.rule.name for match in matches] == ["r5"]
    assert not matcher.match({"path": "/api", "user": "u5", "plan": "a"})
    assert not matcher.match({"path": "/api/k", "user": "u99", "plan": "a"})
    assert [match.rule.name for match in matcher.match({"path": "/7/x"})] == ["p7"]
    assert len(matcher.match({"path": "/x", "host": "h"})) == len(crowd)
    assert not matcher.match({"path": "/y", "host": "h"})
    assert not matcher.match({"host": "h"})
    assert len(matcher.match({"host": "g", "plan": "b"})) == len(plans)
    assert not matcher.match({"host": "g", "plan": "a"})


GLOBS = st.lists(st.text("ab*", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple)
SEGMENTS = st.text("ab*", min_size=1, max_size=4).filter(lambda text: "**" not in text)
PATHS = st.lists(st.lists(SEGMENTS | st.just("**"), min_size=1, max_size=3), min_size=1, max_size=2).map(
    lambda paths: tuple("/" + "/".join(path) for path in paths if path.count("**") < 2) or ("/a*/b",)
)
GLOB_TESTS = st.builds(Test, st.sampled_from(["user", "plan"]), GLOBS) | st.builds(Test, st.just("path"), PATHS)
GLOB_CALLS = st.fixed_dictionaries(
    {"user": st.text("ab", max_size=5)},
    optional={
        "plan": st.text("ab", max_size=5),
        "path": st.lists(st.text("ab", min_size=1, max_size=4), max_size=4).map(lambda path: "/" + "/".join(path)),
    },
)


@settings(max_examples=80)
@given(
    st.lists(st.lists(GLOB_TESTS, min_size=1, max_size=2), max_size=3 * MAX_UNINDEXED),
    st.lists(GLOB_CALLS, min_size=1),
)
def test_they_agree_where_there_are_many_globs(whens: list[list[Test]], calls: list[dict[str, str]]) -> None:
    book = Rulebook(rules=tuple(rule(f"r{number}", All(tuple(when))) for number, when in enumerate(whens)))
    matcher = Matcher(book)
    for call in calls:
        assert [one.match for one in matcher.explain(call) if one.applies] == list(matcher.match(call))


@pytest.mark.parametrize(
    ("attribute", "form", "value"),
    [
        ("user", "bot-{}-*", "bot-17-x"),
        ("host", "*.shop-{}.example.com", "eu.shop-17.example.com"),
        ("user", "bot-*-{}", "bot-x-17"),
        ("user", "{}-*-bot", "17-x-bot"),
        ("path", "/img-{}-*/x", "/img-17-b/x"),
        ("path", "/img-*-{}/**", "/img-b-17/x"),
        ("path", "/**/img-{}-*", "/x/y/img-17-b"),
        ("path", "/**/{}/x", "/y/17/x"),
    ],
)
def test_globs_are_found_by_what_they_begin_or_end_with(attribute: str, form: str, value: str) -> None:
    book = Rulebook(rules=tuple(rule(f"r{n}", Test(attribute, (form.format(n),))) for n in range(100)))
    assert [match.rule.name for match in Matcher(book).match({attribute: value})] == ["r17"]
    assert looked_at(book, {attribute: value}) == {17}


def test_a_list_of_globs_and_texts_waits_under_each_and_is_found_once() -> None:
    rules = tuple(rule(f"r{n}", Test("user", (f"u{n}-*", f"*-u{n}", f"u{n}", f"u{n}-x*"))) for n in range(100))
    matcher = Matcher(Rulebook(rules=rules))
    for user in ("u17", "u17-", "u17-x", "x-u17", "u17-u17", "u17-xy-u17"):
        assert [match.rule.name for match in matcher.match({"user": user})] == ["r17"]
        assert looked_at(matcher.book, {"user": user}) == {17}
    assert not matcher.match({"user": "u1717"})
    assert not matcher.match({"user": ""})
    assert not matcher.match({})


def test_a_glob_that_is_open_at_both_ends_is_always_looked_at() -> None:
    book = Rulebook(rules=tuple(rule(f"r{n}", Test("user", (f"*-{n}-*", "u"))) for n in range(20)))
    assert looked_at(book, {}) == set(range(20))
    assert [match.rule.name for match in Matcher(book).match({"user": "a-7-b"})] == ["r7"]


def looked_at(book: Rulebook, call: dict[str, str]) -> set[int]:
    """The candidates, before they are tested."""
    index = RuleIndex([IndexEntry(number, [rule.when]) for number, rule in enumerate(book.rules)])  # type: ignore[list-item]
    indexes: list[int] = []
    index.find(call, segments(call["path"]) if "path" in call else None, indexes)
    return set(indexes)


def test_only_what_the_book_uses_is_read() -> None:
    matcher = Matcher(Rulebook(rules=(rule("r", key=("user",)),)))
    (match,) = matcher.match({"user": 5, "path": object(), "method": object()})
    assert match.key == "user=5"


def test_a_denial_says_what_is_missing() -> None:
    both = Matcher(Rulebook(rules=(rule("r", key=("user", "sku", "plan")),)))
    assert both.match({"plan": "a"})[0].denial_reason == "user and sku are missing"
    assert both.match({"plan": "a", "sku": "1"})[0].denial_reason == "user is missing"
    costly = Matcher(Rulebook(rules=(rule("r", cost="size"),)))
    assert costly.match({})[0].denial_reason == "size, the cost, is missing"
    assert costly.match({"size": "x"})[0].denial_reason == "size, the cost, is no whole number"
    assert costly.match({"size": "3"})[0].denial_reason is None


def test_rules_that_replace_each_other_in_a_circle() -> None:
    book = Rulebook(rules=(rule("a", replaces=("b",)), rule("b", replaces=("c",)), rule("c", replaces=("a",))))
    with pytest.raises(InvalidRule, match="Rules replace each other in a circle: ") as refused:
        Matcher(book)
    circle = str(refused.value).partition(": ")[2].rstrip(".").replace('"', "").split(" replaces ")
    assert list(pairwise(circle)) in (
        [("a", "b"), ("b", "c"), ("c", "a")],
        [("b", "c"), ("c", "a"), ("a", "b")],
        [("c", "a"), ("a", "b"), ("b", "c")],
    )


def test_a_rule_that_replaces_nobody_there_is() -> None:
    with pytest.raises(InvalidRule, match='Rule "a" replaces "b", and there is no such rule'):
        Matcher(Rulebook(rules=(rule("a", replaces=("b",)),)))


def rule(name: str, when: Any = None, *, key: tuple[str, ...] = (), cost: str | None = None, **rest: Any) -> Rule:
    return Rule(
        name=name,
        limit=Choice(parse_all("1/s")),
        when=when,
        key=tuple(Dimension.parse(text) for text in key),
        cost=None if cost is None else Choice(cost),
        **rest,
    )
