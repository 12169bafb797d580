"""Which counts a command means: those of a limit by itself, or those of a rule.

    --limit "10/s; 500/hour" [--name api]     as Limiter(limit, name=...) files them
    --rule login [--rules FILE]               as the rulebook files them: login, login#1; of a case login@pro

With a rule the key is the rule's key text, user=ann|sku=7. It holds attributes, and with --attribute plan=pro
others can be told: they say which of several limits the rule has for this key. A count is never judged by a
limit that was only guessed.
"""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from headgate.asking import names_of
from headgate.cli.book import add_book, known_book
from headgate.cli.parser import pair
from headgate.engine.terms import Terms
from headgate.errors import InvalidRule
from headgate.model.limit import Limit
from headgate.ruled import ruling
from headgate.rules.attributes import Attributes
from headgate.rules.keys import ALL
from headgate.rules.rule import Choice, Limits, Rule, Rulebook
from headgate.text import parse_all

if TYPE_CHECKING:
    from headgate.engine.redis.blocking import RedisEngine


class Count(NamedTuple):
    name: str
    limit: Limit
    terms: Terms | None


def add_counts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="whose count; with --rule its key text: user=ann|sku=7")
    parser.add_argument("--limit", metavar="LIMIT", help='a limit by itself, such as "10/minute"')
    parser.add_argument("--name", help="what the limit's counts are filed under (its text unless given)")
    parser.add_argument("--rule", metavar="RULE", help="a rule of the book, instead of --limit")
    add_book(parser)
    parser.add_argument(
        "--attribute",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what a rule's limit is chosen by, if the key does not say it",
    )


def counts_of(args: argparse.Namespace, engine: RedisEngine) -> list[Count]:
    """What the command means; InvalidRule if it does not say."""
    rule = _rule(args, engine)
    if rule is None:
        return _by_itself(args)
    attributes = attributes_of(rule, args.key)
    attributes.update(args.attribute)
    for name in untold(rule.limit, attributes):
        raise InvalidRule(
            f'Rule "{rule.name}" has several limits, by {name}: say which with --attribute {name}=VALUE, '
            f"or {name}= if there is none."
        )
    found = of_rule(rule, attributes)
    if not found:
        raise InvalidRule(f'Rule "{rule.name}" is unlimited for this key: there is nothing to count.')
    return found


def all_counts_of(args: argparse.Namespace, engine: RedisEngine) -> list[Count]:
    """The same, and of a rule those of every limit that it may choose."""
    rule = _rule(args, engine)
    if rule is None:
        return _by_itself(args)
    attributes_of(rule, args.key)
    every = [count for _, limits in ruling.cases_of(rule) for count in of_limits(rule, limits)]
    return list({(count.name, count.limit.algorithm): count for count in every}.values())


def _by_itself(args: argparse.Namespace) -> list[Count]:
    limits = parse_all(args.limit)
    return [Count(name, limit, None) for name, limit in zip(names_of(limits, args.name), limits, strict=True)]


def _rule(args: argparse.Namespace, engine: RedisEngine) -> Rule | None:
    """The rule that is meant; None: a limit by itself is."""
    if (args.limit is None) == (args.rule is None):
        raise InvalidRule('Say which count: --limit "10/minute" for a limit by itself, or --rule NAME for a rule.')
    if args.limit is not None:
        return None
    if args.name is not None:
        raise InvalidRule("A rule has its own name: --name goes with --limit.")
    book = known_book(args, engine)
    if book is None:
        raise InvalidRule(
            f'Where is the rule "{args.rule}"? No rulebook was pushed to this engine: give one with --rules FILE.'
        )
    rule = rule_of(book, args.rule)
    if rule.where != "cluster":
        raise InvalidRule(
            f'Rule "{rule.name}" is counted in each process (where: {rule.where}): the engine does not know.'
        )
    return rule


def rule_of(book: Rulebook, name: str) -> Rule:
    rule = book.rule(name)
    if rule is None:
        known = [rule.name for rule in book.rules]
        near = get_close_matches(name, known, 1, 0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known) or 'none'}."
        raise InvalidRule(f'There is no rule "{name}" in {book.source or "the rulebook"}. {hint}')
    return rule


def of_rule(rule: Rule, attributes: Attributes) -> list[Count]:
    """The counts of a rule for a key of these attributes; none if it is unlimited."""
    return of_limits(rule, rule.limit.of(attributes))


def of_limits(rule: Rule, limits: Limits) -> list[Count]:
    """The counts of one of the limits that a rule may choose."""
    names, terms = ruling.names_of(rule, limits), ruling.terms_of(rule, None)
    return [Count(name, limit, terms) for name, limit in zip(names, limits, strict=True)]


def untold(choice: Choice[Limits], attributes: Attributes) -> list[str]:
    """What a limit is chosen by that is not known."""
    return sorted({test.attribute for test, _ in choice.cases} - set(attributes))


def attributes_of(rule: Rule, key: str) -> Attributes:
    """What a key text says; a sentence if it cannot be a key of this rule."""
    parts = [] if key == ALL and not rule.key else [part.partition("=") for part in key.split("|")]
    names = [name for name, _, _ in parts]
    if names != [dimension.name for dimension in rule.key] or not all(equals for _, equals, _ in parts):
        form = "|".join(f"{dimension.name}=VALUE" for dimension in rule.key) or ALL
        raise InvalidRule(f'"{key}" is no key of rule "{rule.name}". Write {form}.')
    found = Attributes()
    for name, _, value in parts:
        if value:
            found[name] = unquote(value, errors="surrogateescape")
    return found
