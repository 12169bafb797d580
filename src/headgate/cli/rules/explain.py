"""headgate rules explain: what a rulebook makes of one call: which rules apply, why the others do not, and the
answer.

The answer is a peek: on the engine that is named, with the counts as they are, else as for the first call ever.
"""

from __future__ import annotations

import argparse
from typing import Any

from headgate.algorithms.decision import Verdict
from headgate.algorithms.limit import UNLIMITED
from headgate.cli.engine_option import server
from headgate.cli.output import Output, warn
from headgate.cli.parser import Commands, command, header, pair, whole
from headgate.cli.rulebook_option import print_warnings
from headgate.cli.table import Cell, Table, Value
from headgate.enforcement.rule_decision import RuleDecision
from headgate.engines.memory.engine import MemoryEngine
from headgate.explain import long
from headgate.limiter import Limiter
from headgate.rules import load
from headgate.rules.attributes import Attributes, folded, named, normal, request
from headgate.rules.match import Matcher, Told
from headgate.rules.matching.explain_match import shown
from headgate.rules.rule import Rulebook


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "explain",
        run,
        "which rules apply to a call, why the others do not, and what is decided",
        "headgate rules explain rules.yaml --method POST --path /login --address 203.0.113.9",
        "headgate rules explain rules.yaml --url '/items/7?page=2' --user ann --header x-plan:pro",
    )
    parser.add_argument("file", metavar="FILE", help="the rulebook")
    parser.add_argument("--method", help="GET, if there is a path and no method")
    parser.add_argument(
        "--path", "--url", dest="target", metavar="TARGET", help="a path, with its query; or a URL"
    )
    parser.add_argument(
        "--header", type=header, action="append", default=[], metavar="NAME:VALUE", help="repeatable"
    )
    parser.add_argument("--address", help="the client's")
    parser.add_argument("--user")
    parser.add_argument(
        "--attribute", type=pair, action="append", default=[], metavar="NAME=VALUE", help="any other"
    )
    parser.add_argument("--cost", type=whole(0), metavar="N", help="what the caller says that it costs")
    parser.add_argument("--engine", metavar="URL", help="peek there (unless given, as for the first call ever)")
    parser.add_argument("--prefix", default="hg", help="what the engine's keys begin with (hg unless given)")


def run(args: argparse.Namespace) -> Output:
    book = print_warnings(load.read(args.file), as_json=args.json)
    attributes = _attributes(args)
    told = Matcher(book).explain(attributes, args.cost)
    decision = _peeked(args, book, attributes)
    document = {
        "attributes": dict(attributes),
        "rules": [_document(each) for each in told],
        "decision": decided(decision),
    }
    rows: list[tuple[Value, ...]] = [
        (each.rule.name, Cell("applies", "green") if each.applies else "no", _why(each)) for each in told
    ]
    known = Table(("attribute", "value"), [(name, shown(value)) for name, value in sorted(attributes.items())])
    answer = (str(decision), "green" if decision.allowed else "red")
    return Output(document, [known, "", Table(("rule", "", "why"), rows), "", answer, *_counts(decision)])


def _peeked(args: argparse.Namespace, book: Rulebook, attributes: Attributes) -> RuleDecision:
    if args.engine is None:
        return Limiter.from_rules(book, MemoryEngine()).peek(attributes, args.cost)
    with server(args, "leave --engine out to peek as for the first call ever") as engine:
        return Limiter.from_rules(book, engine).peek(attributes, args.cost)


def _attributes(args: argparse.Namespace) -> Attributes:
    """The call's attributes. An address that is none is left out, as a limiter does, and that is said."""
    found = _read(args)
    given = dict(args.attribute).get("address", args.address)
    if given and "address" not in found:
        warn(
            f"{given!r} is not an IP address: the call has no address, as in a running limiter. Write one such as "
            "203.0.113.9 or 2001:db8::1, without a port.",
            as_json=args.json,
        )
    return found


def _read(args: argparse.Namespace) -> Attributes:
    others = {"user": args.user} | {named(name): value for name, value in args.attribute}
    if args.target is None and args.method is None and not args.header:
        found = Attributes()
        found["address"] = args.address
    else:
        found = request(args.method or "GET", args.target or "", args.header, args.address)
        if args.target is None:
            del found["path"]
    for name, value in others.items():
        if normal(name, value) is not None:
            found[folded(name)] = value
    return found


def _why(told: Told) -> str:
    return told.why.removeprefix("applies: ")


def _document(told: Told) -> dict[str, Any]:
    rule, match, _ = told
    document: dict[str, Any] = {"rule": rule.name, "applies": told.applies, "why": _why(told)}
    if match is not None:
        candidate = match.candidate
        document |= {
            "key": match.key,
            "cost": match.cost,
            "limits": [limit.text for limit in match.limits],
            "shadow": match.shadow,
            "candidate": None if candidate is None else [limit.text for limit in candidate],
            "denied": match.denied,
        }
    return document


def decided(decision: RuleDecision) -> dict[str, Any]:
    """A decision by rules, as a document."""
    refusal = decision.refusal
    return {
        "allowed": decision.allowed,
        "rule": decision.rule,
        "why": decision.why,
        "status": None if refusal is None else refusal.status,
        "retry_after": decision.retry_after,
        "delay": decision.delay,
        "verdicts": [_verdict(verdict) for verdict in decision.verdicts],
        "asides": [_verdict(verdict) | {"aside": verdict.aside} for verdict in decision.asides],
    }


def _limit(verdict: Verdict) -> str | None:
    """The limit that spoke; None: the rule refused without it, as where its key is missing."""
    return None if verdict.limit is UNLIMITED else verdict.limit.text


def _remaining(verdict: Verdict) -> int | None:
    return None if verdict.limit is UNLIMITED else verdict.remaining


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "rule": verdict.rule,
        "key": verdict.key,
        "limit": _limit(verdict),
        "allowed": verdict.allowed,
        "remaining": _remaining(verdict),
        "retry_after": verdict.retry_after,
        "reset_after": verdict.reset_after,
    }


def _counts(decision: RuleDecision) -> list[Table]:
    rows: list[tuple[Value, ...]] = []
    for verdict in (*decision.verdicts, *decision.asides):
        yes = verdict.allowed
        rows.append(
            (
                verdict.rule,
                verdict.key,
                _limit(verdict),
                Cell(
                    ("allowed" if yes else "refused") + (f" ({verdict.aside})" if verdict.aside else ""),
                    "green" if yes else "red",
                ),
                _remaining(verdict),
                long(verdict.retry_after_us) if verdict.retry_after_us else None,
            )
        )
    titles = ("rule", "key", "limit", "", "remaining", "retry after")
    return [Table(titles, rows, right=("remaining", "retry after"))] if rows else []
