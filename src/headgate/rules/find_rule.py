"""Finds a rule by its name, and parses key texts such as user=ann|sku=7 into attributes."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

from headgate.errors import InvalidRule
from headgate.rules.attributes import AttributeReader, Attributes
from headgate.rules.keys import ALL, key_builder
from headgate.rules.rule import Rule, Rulebook


class NoSuchRule(InvalidRule):
    """The rulebook has no rule of this name."""


def find_rule(book: Rulebook, name: str) -> Rule:
    """Returns the rule of this name; raises NoSuchRule with a suggestion if there is none."""
    rule = book.rule(name)
    if rule is None:
        names = [rule.name for rule in book.rules]
        similar = get_close_matches(name, names, 1, 0.5)
        hint = f"Did you mean {similar[0]}?" if similar else f"Known: {', '.join(names) or 'none'}."
        raise NoSuchRule(f'There is no rule "{name}" in {book.source or "the rulebook"}. {hint}')
    return rule


def key_of_call(rule: Rule, attributes: Mapping[str, Any]) -> str:
    """Returns the key that a call is counted under by a rule; raises InvalidRule if the attributes do not form
    one."""
    names = [dimension.name for dimension in rule.key]
    key = key_builder(rule.key, blank=rule.missing == "one")(AttributeReader(names)(attributes))
    if key is None:
        raise InvalidRule(
            f'The key of rule "{rule.name}" consists of {" and ".join(names)}, and the call has not all of them.'
        )
    return key


def key_format(rule: Rule) -> str:
    """Returns the form of a rule's keys, such as user=VALUE|sku=VALUE."""
    return "|".join(f"{dimension.name}=VALUE" for dimension in rule.key) or ALL


def parse_key(rule: Rule, key: str) -> Attributes:
    """Parses a key text into attributes; raises InvalidRule if it cannot be a key of this rule."""
    parts = [] if key == ALL and not rule.key else [part.partition("=") for part in key.split("|")]
    names = [name for name, _, _ in parts]
    if names != [dimension.name for dimension in rule.key] or not all(equals for _, equals, _ in parts):
        raise InvalidRule(f'"{key}" is no key of rule "{rule.name}". Write {key_format(rule)}.')
    attributes = Attributes()
    for dimension, (name, _, value) in zip(rule.key, parts, strict=True):
        if value:
            address_text = value if dimension.v4 is None else value.partition("/")[0]
            attributes[name] = unquote(address_text, errors="surrogateescape")
    rebuilt_key = key_builder(rule.key, blank=rule.missing == "one")(attributes)
    if rebuilt_key != key:
        hint = f"Did you mean {rebuilt_key}?" if rebuilt_key is not None else f"Write {key_format(rule)}."
        raise InvalidRule(f'"{key}" is no key of rule "{rule.name}": no call is counted under it. {hint}')
    for dimension, (name, _, value) in zip(rule.key, parts, strict=True):
        if dimension.v4 is not None and "/" in value:
            del attributes[name]  # a network: the single address is unknown
    return attributes
