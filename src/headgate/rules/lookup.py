"""Finds a rule by its name, and reads its key texts: user=ann|sku=7 holds attributes."""

from __future__ import annotations

from difflib import get_close_matches
from urllib.parse import unquote

from headgate.errors import InvalidRule
from headgate.rules.attributes import Attributes
from headgate.rules.keys import ALL, key_builder
from headgate.rules.rule import Rule, Rulebook


class NoSuchRule(InvalidRule):
    """The rulebook has no rule of this name."""


def rule_of(book: Rulebook, name: str) -> Rule:
    rule = book.rule(name)
    if rule is None:
        known = [rule.name for rule in book.rules]
        near = get_close_matches(name, known, 1, 0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known) or 'none'}."
        raise NoSuchRule(f'There is no rule "{name}" in {book.source or "the rulebook"}. {hint}')
    return rule


def form_of(rule: Rule) -> str:
    """How its keys are written."""
    return "|".join(f"{dimension.name}=VALUE" for dimension in rule.key) or ALL


def attributes_of(rule: Rule, key: str) -> Attributes:
    """What a key text says; a sentence if it cannot be a key of this rule."""
    parts = [] if key == ALL and not rule.key else [part.partition("=") for part in key.split("|")]
    names = [name for name, _, _ in parts]
    if names != [dimension.name for dimension in rule.key] or not all(equals for _, equals, _ in parts):
        raise InvalidRule(f'"{key}" is no key of rule "{rule.name}". Write {form_of(rule)}.')
    found = Attributes()
    for dimension, (name, _, value) in zip(rule.key, parts, strict=True):
        if value:
            first = value if dimension.v4 is None else value.partition("/")[0]
            found[name] = unquote(first, errors="surrogateescape")
    formed = key_builder(rule.key, blank=rule.missing == "one")(found)
    if formed != key:
        hint = f"Did you mean {formed}?" if formed is not None else f"Write {form_of(rule)}."
        raise InvalidRule(f'"{key}" is no key of rule "{rule.name}": no call is counted under it. {hint}')
    for dimension, (name, _, value) in zip(rule.key, parts, strict=True):
        if dimension.v4 is not None and "/" in value:
            del found[name]  # a network: which of its addresses called is not known
    return found
