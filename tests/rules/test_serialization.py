"""A rulebook that is written can be read back as the same rulebook."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.limit_syntax import parse_all
from headgate.rules import load, serialization
from headgate.rules.condition import All, Not, Test
from headgate.rules.parsing import read_yaml
from headgate.rules.parsing.document_tree import ListNode, MappingNode, Node
from headgate.rules.rule import Choice, Rule, Rulebook

# All but surrogates, which no text of a rulebook holds, and with a liking for what YAML finds meaning in.
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    "yno~#:-?[]{},&*!|>'\"%@` \t\n\x85\u2028\ufeff01.e/+_=<\\"
)
LEAVES = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(10**6), 10**6),
    st.integers(0, 10_000).map(lambda hundredths: hundredths / 100),
    TEXTS,
    st.sampled_from(
        ["true", "No", "on", "null", "~", "1e3", "0x10", "1_000", "12:30", "2026-11-16", "<<", "=", "50ms", "---"]
    ),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=25,
)


@given(st.dictionaries(TEXTS | st.just("rules"), TREES, max_size=4))
@settings(max_examples=500, deadline=None)
def test_yaml_that_is_written_is_read_the_same_by_anyone(document: dict[str, Any]) -> None:
    text = serialization.yaml_text(document)
    assert yaml.safe_load(text) == document
    assert texts(read_yaml.read(text)) == marked(document)


def texts(node: Node) -> Any:
    if isinstance(node, MappingNode):
        return {name: texts(inner) for name, (_, inner) in node.entries.items()}
    return [texts(inner) for inner in node.nodes] if isinstance(node, ListNode) else node.text


def marked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: marked(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [marked(inner) for inner in value]
    return value if isinstance(value, str) else json.dumps(value)


@given(st.text("a'\"\\\u2028 😀", min_size=900, max_size=3000), st.booleans())
@settings(max_examples=20, deadline=None)
def test_long_names_are_read_again(name: str, wide: bool) -> None:
    document = {name: {name: ["x" * (200 if wide else 1)], "b": 1}, "rules": [{name: 1, "b": {name: [2]}}]}
    assert yaml.safe_load(serialization.yaml_text(document)) == document


@given(st.dictionaries(st.sampled_from(["", "a", "b"]), TEXTS))
def test_a_comment_is_only_that(comments: dict[str, str]) -> None:
    document = {"name": "x", "rules": [{"name": "a", "limit": "1/s"}, {"name": "b", "limit": "2/s"}]}
    assert yaml.safe_load(serialization.yaml_text(document, comments)) == document


def test_it_reads_as_people_write() -> None:
    document = {
        "name": "shop",
        "rules": [
            {
                "name": "login",
                "when": {"method": "POST", "path": "/login"},
                "limit": "10/minute",
                "deadline": "50ms",
            },
            {
                "name": "off",
                "key": ["user", "sku"],
                "limit": "5/s",
                "when": {"path": ["/items/{sku}" * 5, "/b" * 40]},
            },
        ],
    }
    assert serialization.yaml_text(document, {"": "Imported.", "login": "From nginx.conf:12:\n  zone=login"}) == (
        "# Imported.\n"
        "name: shop\n"
        "rules:\n"
        "  # From nginx.conf:12:\n"
        "  #   zone=login\n"
        "  - name: login\n"
        "    when: {method: POST, path: /login}\n"
        "    limit: 10/minute\n"
        "    deadline: 50ms\n"
        "\n"
        '  - name: "off"\n'
        "    key: [user, sku]\n"
        "    limit: 5/s\n"
        "    when:\n"
        "      path:\n"
        f'        - "{"/items/{sku}" * 5}"\n'
        f"        - {'/b' * 40}\n"
    )
    assert serialization.yaml_text({}) == "{}\n"
    assert serialization.yaml_text({"rules": []}) == "rules: []\n"


def test_defaults_are_left_out() -> None:
    book = Rulebook(rules=(Rule(name="a", limit=Choice(parse_all("5/s"))),))
    assert serialization.document(book) == {"rules": [{"name": "a", "limit": "5/s"}]}
    assert serialization.document(Rulebook()) == {"rules": []}
    assert load.from_mapping({"rules": []}) == Rulebook()


def test_conditions_are_written_as_mappings() -> None:
    get, post = Test("method", ("GET",)), Test("method", ("GET", "POST"))
    assert serialization.condition(All((get, Test("plan", True)))) == {"method": "GET", "plan": True}
    assert serialization.condition(All((get, post))) == {"all": [{"method": "GET"}, {"method": ["GET", "POST"]}]}
    assert serialization.condition(All((get, Not(Test("plan", False))))) == {
        "all": [{"method": "GET"}, {"not": {"plan": False}}]
    }
