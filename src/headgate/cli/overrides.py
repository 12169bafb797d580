"""headgate overrides: sets, reads and removes limits of single keys, which replace their rule's.

They take effect with the next call, in every process. If there is a rulebook (--rules, or pushed to the engine),
an override without effect is refused: of a rule that does not exist or takes none, or with limits of other
algorithms. Without a rulebook it is set nevertheless, with a warning. Overrides of a rule that was removed can be
read and unset. For a key without an override, rule and key must be valid under the rulebook.
"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import TYPE_CHECKING

from headgate.algorithms.limit import Limit
from headgate.cli.command_parser import Commands, Parser, Run, command, duration_option, group, whole_number
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import DONE, NEGATIVE, Output, warn
from headgate.cli.rulebook_option import add_rules_option, optional_rulebook
from headgate.cli.text_table import TextTable
from headgate.enforcement.override_checks import check_override
from headgate.engines.overrides import validate_override
from headgate.rules.find_rule import find_rule, parse_key
from headgate.rules.rule import Rulebook

if TYPE_CHECKING:
    from headgate.engines.redis.sync_engine import RedisEngine


def add(commands: Commands) -> None:
    verbs = group(
        commands, "overrides", "set, get, unset or list overrides: limits of single keys, in place of their rule's"
    )
    set_parser = _verb(
        verbs,
        "set",
        _set,
        "set another limit for a key",
        'headgate overrides set items "user=ann|sku=7" 1000/s --for 2h',
        "headgate overrides set login address=203.0.113.9 100/minute --rules rules.yaml",
    )
    set_parser.add_argument("key", metavar="KEY", help="the rule's key text: user=ann|sku=7")
    set_parser.add_argument("limit", metavar="LIMIT", help='such as "100/minute", or "10/s; 500/hour" by position')
    set_parser.add_argument(
        "--if-absent", action="store_true", help="only if the key has no override yet (exit code 3 if it has one)"
    )
    set_parser.add_argument(
        "--for",
        dest="life",
        type=duration_option,
        metavar="SPAN",
        help="how long it lasts, such as 30m or 2h (default: until it is unset)",
    )
    get_parser = _verb(
        verbs, "get", _get, "print the override of a key", "headgate overrides get items 'user=ann|sku=7'"
    )
    get_parser.add_argument("key", metavar="KEY", help="the rule's key text")
    unset_parser = _verb(
        verbs,
        "unset",
        _unset,
        "remove the override of a key: the rule decides again",
        "headgate overrides unset items user=ann",
    )
    unset_parser.add_argument("key", metavar="KEY", help="the rule's key text")
    list_parser = _verb(
        verbs, "list", _list, "list the keys of a rule that have overrides", "headgate overrides list items"
    )
    list_parser.add_argument("--top", type=whole_number(1), metavar="N", help="list at most this many")


def _verb(verbs: Commands, name: str, run: Run, about: str, *examples: str) -> Parser:
    parser = command(verbs, name, run, about, *examples)
    parser.add_argument("rule", metavar="RULE", help="a rule with `overrides: true`")
    add_rules_option(parser)
    add_engine(parser)
    return parser


def _set(args: argparse.Namespace) -> Output:
    key, limits, _ = validate_override(args.key, args.limit)
    with server(args) as engine:
        _check(args, engine, key, limits)
        done = engine.overrides(args.rule).set(key, args.limit, absent=args.if_absent, ttl=args.life)
    text = "; ".join(limit.text for limit in limits)
    document = {"rule": args.rule, "key": key, "limit": text, "for": args.life, "set": done}
    if not done:
        return Output(document, [f"{args.rule}: {key} has a limit of its own already; it stays"], NEGATIVE)
    life = f" for {args.life:g} s" if args.life else ""
    return Output(document, [f"{args.rule}: {key} has {text}{life}"])


def _check(args: argparse.Namespace, engine: RedisEngine, key: str, limits: tuple[Limit, ...]) -> None:
    book = optional_rulebook(args, engine)
    if book is None:
        warning = (
            "There is no rulebook (--rules FILE): it was not checked that this rule exists and takes overrides."
        )
        warn(warning, as_json=args.json)
        return
    check_override(book, args.rule, key, limits)


def _check_names(book: Rulebook | None, name: str, key: str | None = None) -> None:
    """Raises InvalidRule if the rulebook has no such rule, or the rule no such key."""
    if book is not None:
        rule = find_rule(book, name)
        if key is not None:
            parse_key(rule, key)


def _get(args: argparse.Namespace) -> Output:
    with server(args) as engine:
        book = optional_rulebook(args, engine)
        text = engine.overrides(args.rule).get(args.key)
    document = {"rule": args.rule, "key": args.key, "limit": text}
    if text is None:
        _check_names(book, args.rule, args.key)
        return Output(document, [f"{args.rule}: {args.key} has no limit of its own"], NEGATIVE)
    return Output(document, [text])


def _unset(args: argparse.Namespace) -> Output:
    with server(args) as engine:
        book = optional_rulebook(args, engine)
        done = engine.overrides(args.rule).unset(args.key)
    if not done:
        _check_names(book, args.rule, args.key)
    result = "goes by the rule again" if done else "had no limit of its own"
    return Output(
        {"rule": args.rule, "key": args.key, "unset": done},
        [f"{args.rule}: {args.key} {result}"],
        DONE if done else NEGATIVE,
    )


def _list(args: argparse.Namespace) -> Output:
    with server(args) as engine:
        book = optional_rulebook(args, engine)
        rows = sorted(islice(engine.overrides(args.rule).list(), args.top))
    document = {"rule": args.rule, "overrides": [{"key": key, "limit": text} for key, text in rows]}
    if not rows:
        _check_names(book, args.rule)
        return Output(document, [f"{args.rule}: no key has a limit of its own"])
    return Output(document, [TextTable(("key", "limit"), rows)])
