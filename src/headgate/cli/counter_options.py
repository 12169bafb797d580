"""The options that select counters: --limit for those of a plain limit, --rule for those of a rule.

    --limit "10/s; 500/hour" [--name api]     the counters of Limiter(limit, name=...)
    --rule login [--rules FILE]               the counters of a rule (operations/find_counters.py)

With a rule the key is the rule's key text, user=ann|sku=7; --attribute plan=pro passes an attribute that its limit
is chosen by, if the key does not contain it. An option that would have no effect is refused.
"""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import TYPE_CHECKING

from headgate.cli.command_parser import name_value
from headgate.cli.rulebook_option import add_rules_option, optional_rulebook
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse_all
from headgate.operations.find_counters import (
    CounterRef,
    all_counters_of_key,
    check_counted_on_server,
    counters_of_key,
)
from headgate.rules.attributes import normalize_name
from headgate.rules.find_rule import find_rule
from headgate.rules.rule import Rule
from headgate.validation import names_of, pause_name_of, pause_options

if TYPE_CHECKING:
    from headgate.engines.redis.sync_engine import RedisEngine

_SAME_FOR_ALL = "has the same limit for all"


def add_counter_options(parser: argparse.ArgumentParser, *, attributes: bool = True) -> None:
    """Adds the options; without `attributes` for a command that uses every limit of a rule."""
    parser.add_argument("key", metavar="KEY", help="the key; with --rule its key text: user=ann|sku=7")
    parser.add_argument("--limit", metavar="LIMIT", help='a limit by itself, such as "10/minute"')
    parser.add_argument("--name", help="the name of the limit's counters (default: its text)")
    parser.add_argument("--rule", metavar="RULE", help="a rule of the rulebook, instead of --limit")
    add_rules_option(parser)
    parser.set_defaults(attribute=[])
    if attributes:
        parser.add_argument(
            "--attribute",
            type=name_value,
            action="append",
            metavar="NAME=VALUE",
            help="an attribute that the rule's limit depends on and the key does not contain",
        )


def counters_of(args: argparse.Namespace, engine: RedisEngine) -> list[CounterRef]:
    """Returns the counters that the options select; raises InvalidRule if they do not."""
    rule = rule_of(args, engine)
    if rule is None:
        return _plain_limit_counters(args)
    return counters_of_key(rule, args.key, _attributes(rule, args.attribute), _describe_option)


def _attributes(rule: Rule, options: list[tuple[str, str]]) -> dict[str, str]:
    """Returns the attributes of --attribute; raises InvalidRule if the rule's limit does not depend on one."""
    needed = sorted({test.attribute for test, _ in rule.limit.cases})
    for name, value in options:
        if normalize_name(name) not in needed:
            matches = get_close_matches(name, needed, 1, 0.6)
            hint = f"Did you mean {matches[0]}?" if matches else f"Leave --attribute {name}={value} out."
            reason = f'chooses its limit by {", ".join(needed)}, not by "{name}"' if needed else _SAME_FOR_ALL
            raise InvalidRule(f'Rule "{rule.name}" {reason}. {hint}')
    return dict(options)


def _describe_option(name: str) -> str:
    return f"--attribute {name}=VALUE, or {name}= if there is none"


def all_counters_of(args: argparse.Namespace, engine: RedisEngine) -> list[CounterRef]:
    """Returns the selected counters, of a rule those of every limit that it may choose."""
    rule = rule_of(args, engine)
    if rule is None:
        return pausable_counters(args)
    return all_counters_of_key(rule, args.key)


def _plain_limit_counters(args: argparse.Namespace) -> list[CounterRef]:
    limits = parse_all(args.limit)
    return [CounterRef(name, limit, None) for name, limit in zip(names_of(limits, args.name), limits, strict=True)]


def pausable_counters(args: argparse.Namespace) -> list[CounterRef]:
    """Returns the counters of --limit as those of a limiter that can be paused."""
    limits = parse_all(args.limit)
    names = names_of(limits, args.name)
    options = pause_options(limits, names, pause_name_of(names, args.name))
    return [CounterRef(name, limit, options) for name, limit in zip(names, limits, strict=True)]


def rule_of(args: argparse.Namespace, engine: RedisEngine) -> Rule | None:
    """Returns the rule of --rule; None if --limit is given."""
    if args.limit is None and args.rule is None:
        raise InvalidRule(
            'Neither --limit nor --rule is given. Write --limit "10/minute", or --rule NAME for a rule.'
        )
    if args.limit is not None and args.rule is not None:
        raise InvalidRule(
            "--limit and --rule are both given: a count belongs to one of them. Leave the other out."
        )
    if args.limit is not None:
        if args.rules is not None:
            raise InvalidRule("--rules has no effect with --limit. Use it with --rule.")
        if args.attribute:
            raise InvalidRule("--attribute has no effect with --limit. Use it with --rule.")
        return None
    if args.name is not None:
        raise InvalidRule("--name has no effect with --rule. Use it with --limit.")
    book = optional_rulebook(args, engine)
    if book is None:
        raise InvalidRule(
            f'The rule "{args.rule}" is unknown: no rulebook was pushed to this engine. Give one with '
            "--rules FILE."
        )
    return check_counted_on_server(find_rule(book, args.rule))
