"""The schema and the loader say the same, as far as a schema can."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from headgate.errors import InvalidRule
from headgate.rules import load
from headgate.rules.json_schema import schema
from headgate.rules.parsing import read_json, read_toml, read_yaml
from headgate.rules.parsing.document_tree import Fault, ListNode, MappingNode, Node, decode
from headgate.rules.parsing.parse_rule import DEFAULT_FIELDS, FIELDS
from headgate.rules.rule import FALLBACKS, HEADERS, MISSING, MODES, WHERE
from tests.rules.parsing.test_load import MALFORMED, WELLFORMED, spoiled

READERS = {"json": read_json.read, "toml": read_toml.read, "yaml": read_yaml.read, "yml": read_yaml.read}
VALID = Draft202012Validator(schema())

# What a look at one field cannot tell. Everything else that the loader refuses, the schema refuses.
BEYOND = {
    # which names there are, and where they lead
    "attribute-not-listed", "attribute-not-listed-by-name", "attribute-not-listed-in-key", "conditions-circle",
    "conditions-circle-of-one", "conditions-grow", "conditions-long-row", "conditions-unknown", "name-twice",
    "replaces-circle", "replaces-itself", "replaces-unknown", "when-name-of-none", "when-number",
    "when-unknown-name",
    # what a condition means
    "choice-case-behind-all", "choice-case-captures", "choice-case-hidden", "choice-case-twice", "except-is-part",
    "except-is-when", "impossible-families", "impossible-glob", "impossible-not", "impossible-path",
    "impossible-presence", "impossible-texts", "paths-capture-alike",
    # what a number or a network is
    "cost-zero-always", "deadline-zero", "key-twice", "prefetch-too-long", "mode-decimals", "mode-over",
    "test-network-bits",
    # what goes together, with defaults at hand
    "defaults-prefetch-and-node", "prefetch-with-lockout", "prefetch-with-node", "prefetch-with-overrides",
    "prefetch-with-split", "prefetch-with-pausable", "pausable-with-node", "pausable-with-overrides",
    "missing-capture-not-sure", "missing-unsaid", "missing-unsaid-cost", "nodes-without-split",
    "slots-as-candidate", "adaptive-cluster-with-key",
    "adaptive-between-order", "adaptive-priority-twice", "adaptive-with-cost",
    "adaptive-with-fallback", "adaptive-with-lockout", "adaptive-with-split",
    "slots-in-choice", "slots-two", "slots-with-candidate", "slots-with-cost", "slots-with-prefetch",
    "slots-with-lockout", "slots-with-overrides", "slots-with-quota-mode", "slots-with-rate",
}  # fmt: skip


def instance(node: Node) -> Any:
    """A tree as YAML 1.2 means it, which is what editors hand to a schema."""
    if isinstance(node, MappingNode):
        return {name: instance(inner) for name, (_, inner) in node.entries.items()}
    if isinstance(node, ListNode):
        return [instance(inner) for inner in node.nodes]
    if node.quoted:
        return node.text
    if node.empty:
        return None
    if node.text.lower() in ("true", "false"):
        return node.text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]+", node.text):
        return int(node.text)
    return float(node.text) if re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?", node.text) else node.text


def tree(path: Path) -> Any:
    return instance(READERS[path.suffix[1:]](decode(path.read_bytes())))


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("path", WELLFORMED, ids=lambda path: str(path.name))
def test_a_book_that_loads_is_valid(path: Path) -> None:
    assert [error.message for error in VALID.iter_errors(tree(path))] == []


@pytest.mark.parametrize("path", MALFORMED, ids=lambda path: str(path.name))
def test_a_book_that_does_not_load_is_invalid_as_far_as_a_schema_can_check(path: Path) -> None:
    try:
        document = tree(path)
    except Fault:
        return  # no tree at all
    assert VALID.is_valid(document) == (path.stem in BEYOND)


@given(spoiled())
@settings(max_examples=300, deadline=None)
def test_every_rulebook_that_loads_is_valid_by_the_schema(book: Any) -> None:
    try:
        load.from_mapping(book)
    except InvalidRule:
        return
    assert [error.message for error in VALID.iter_errors(book)] == []


def test_the_words_are_the_loaders() -> None:
    generated = schema()
    fields = generated["$defs"]["rule"]["properties"]
    assert set(fields) == set(FIELDS)
    assert set(generated["properties"]["defaults"]["properties"]) == set(DEFAULT_FIELDS)
    assert generated["properties"]["headers"]["enum"] == list(HEADERS)
    assert fields["missing"]["enum"] == list(MISSING)
    assert fields["where"]["enum"] == list(WHERE)
    assert fields["fallback"]["enum"] == list(FALLBACKS)
    assert fields["mode"]["anyOf"][0]["enum"] == list(MODES)
