"""headgate rules explain: shows which rules apply to a call, why the others do not, and the decision.

The decision is a peek: with the counters of the engine if one is given, otherwise as for the first call ever.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from textwrap import fill
from typing import Any

from headgate.adaptive import prediction
from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.algorithms.decision import Verdict
from headgate.algorithms.durations import in_words
from headgate.algorithms.limit import UNLIMITED
from headgate.cli.command_parser import Commands, command, duration_option, header_option, name_value, whole_number
from headgate.cli.engine_option import server
from headgate.cli.output import Output, warn
from headgate.cli.rulebook_option import print_warnings
from headgate.cli.text_table import Cell, TextTable, Value
from headgate.enforcement.rule_decision import RuleDecision
from headgate.engines.memory.engine import MemoryEngine
from headgate.limiter import Limiter
from headgate.rules import load
from headgate.rules.attributes import Attributes, normalize_name, normalize_value, parse_attribute_name, request
from headgate.rules.match import Matcher, RuleExplanation
from headgate.rules.matching.explain_match import display_value
from headgate.rules.rule import OVERLOAD_REFUSAL, Rule, Rulebook


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "explain",
        run,
        "show which rules apply to a call, why the others do not, and the decision",
        "headgate rules explain rules.yaml --method POST --path /login --address 203.0.113.9",
        "headgate rules explain rules.yaml --url '/items/7?page=2' --user ann --header x-plan:pro",
    )
    parser.add_argument("file", metavar="FILE", help="the rulebook")
    parser.add_argument("--method", help="the method (default: GET, if there is a path)")
    parser.add_argument(
        "--path", "--url", dest="target", metavar="TARGET", help="a path, with its query; or a URL"
    )
    parser.add_argument(
        "--header", type=header_option, action="append", default=[], metavar="NAME:VALUE", help="repeatable"
    )
    parser.add_argument("--address", help="the client's")
    parser.add_argument("--user")
    parser.add_argument(
        "--attribute", type=name_value, action="append", default=[], metavar="NAME=VALUE", help="any other"
    )
    parser.add_argument("--cost", type=whole_number(0), metavar="N", help="the cost that the caller passes")
    parser.add_argument(
        "--engine", metavar="URL", help="use the counts there (default: decide as for the first call ever)"
    )
    parser.add_argument(
        "--response-time",
        type=duration_option,
        metavar="SPAN",
        help="what adaptive limits would do if their percentile of response times were this, such as 250ms",
    )
    parser.add_argument("--prefix", default="hg", help="the prefix of the engine's keys (default: hg)")


def run(args: argparse.Namespace) -> Output:
    book = print_warnings(load.read(args.file), as_json=args.json)
    attributes = _attributes(args)
    explanations = Matcher(book).explain(attributes, args.cost)
    decision = _peek(args, book, attributes)
    document = {
        "attributes": dict(attributes),
        "rules": [_document(explanation) for explanation in explanations],
        "decision": decision_document(decision),
    }
    rows: list[tuple[Value, ...]] = [
        (explanation.rule.name, Cell("applies", "green") if explanation.applies else "no", _why(explanation))
        for explanation in explanations
    ]
    attribute_table = TextTable(
        ("attribute", "value"), [(name, display_value(value)) for name, value in sorted(attributes.items())]
    )
    adaptive = _adaptive_texts(explanations, args.response_time)
    if adaptive:
        document["adaptive"] = adaptive
    paragraphs = [line for name, texts in adaptive.items() for line in _paragraph(name, texts)]
    headline = (str(decision), "green" if decision.allowed else "red")
    return Output(
        document,
        [
            attribute_table,
            "",
            TextTable(("rule", "", "why"), rows),
            "",
            headline,
            *_verdict_tables(decision),
            *paragraphs,
        ],
    )


def _peek(args: argparse.Namespace, book: Rulebook, attributes: Attributes) -> RuleDecision:
    if args.engine is None:
        return Limiter.from_rules(book, MemoryEngine()).peek(attributes, args.cost)
    with server(args, "leave --engine out to peek as for the first call ever") as engine:
        return Limiter.from_rules(book, engine).peek(attributes, args.cost)


def _adaptive_texts(explanations: list[RuleExplanation], measured: float | None) -> dict[str, dict[str, str]]:
    """Returns what the adaptive limits that apply do, by rule; and what they would do at a response time."""
    texts: dict[str, dict[str, str]] = {}
    for rule, match, _ in explanations:
        if match is None:
            continue
        for limit in match.limits:
            if isinstance(limit, AdaptiveLimit):
                texts[rule.name] = dict(limit.explain()) | _texts_of_rule(rule, is_shadow=match.shadow)
                if measured is not None:
                    texts[rule.name]["would"] = prediction.describe(limit, measured)
    return texts


def _texts_of_rule(rule: Rule, *, is_shadow: bool) -> dict[str, str]:
    """Returns what depends on the rule of an adaptive limit: whom it refuses, and who shares it."""
    texts = {}
    if is_shadow:
        texts["refused"] = "nobody: the limit of a shadow is computed and reported, not enforced"
    elif rule.refuse.status != OVERLOAD_REFUSAL.status:
        texts["refused"] = f"the calls above the limit, at once, with status {rule.refuse.status}"
    if rule.where == "cluster":
        texts["process"] = "those of one Redis go on from the median of their limits once a second, from three on"
    return texts


def _paragraph(rule: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yields lines that explain the adaptive limit of a rule."""
    yield ""
    yield f"{rule}:"
    for label, text in texts.items():
        yield fill(text, 100, initial_indent=f"  {label:<10}", subsequent_indent=" " * 12)


def _attributes(args: argparse.Namespace) -> Attributes:
    """Returns the call's attributes. An invalid address is left out, as in a limiter, with a warning."""
    attributes = _parse_attributes(args)
    address = dict(args.attribute).get("address", args.address)
    if address and "address" not in attributes:
        warn(
            f"{address!r} is not an IP address: the call has no address, as in a running limiter. Write one such "
            "as 203.0.113.9 or 2001:db8::1, without a port.",
            as_json=args.json,
        )
    return attributes


def _parse_attributes(args: argparse.Namespace) -> Attributes:
    others = {"user": args.user} | {parse_attribute_name(name): value for name, value in args.attribute}
    if args.target is None and args.method is None and not args.header:
        attributes = Attributes()
        attributes["address"] = args.address
    else:
        attributes = request(args.method or "GET", args.target or "", args.header, args.address)
        if args.target is None:
            del attributes["path"]
    for name, value in others.items():
        if normalize_value(name, value) is not None:
            attributes[normalize_name(name)] = value
    return attributes


def _why(explanation: RuleExplanation) -> str:
    return explanation.why.removeprefix("applies: ")


def _document(explanation: RuleExplanation) -> dict[str, Any]:
    rule, match, _ = explanation
    document: dict[str, Any] = {"rule": rule.name, "applies": explanation.applies, "why": _why(explanation)}
    if match is not None:
        candidate = match.candidate
        document |= {
            "key": match.key,
            "cost": match.cost,
            "limits": [limit.text for limit in match.limits],
            "shadow": match.shadow,
            "candidate": None if candidate is None else [limit.text for limit in candidate],
            "denied": match.denial_reason,
        }
    return document


def decision_document(decision: RuleDecision) -> dict[str, Any]:
    """Returns a decision as a JSON document."""
    refusal = decision.refusal
    return {
        "allowed": decision.allowed,
        "rule": decision.rule,
        "why": decision.why,
        "status": None if refusal is None else refusal.status,
        "retry_after": decision.retry_after,
        "delay": decision.delay,
        "verdicts": [_verdict(verdict) for verdict in decision.verdicts],
        "shadow_verdicts": [
            _verdict(verdict) | {"shadow_kind": verdict.shadow_kind} for verdict in decision.shadow_verdicts
        ],
    }


def _limit(verdict: Verdict) -> str | None:
    """Returns the limit of a verdict; None if the rule refused without it, as where its key is missing."""
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


def _verdict_tables(decision: RuleDecision) -> list[TextTable]:
    rows: list[tuple[Value, ...]] = []
    for verdict in (*decision.verdicts, *decision.shadow_verdicts):
        allowed = verdict.allowed
        rows.append(
            (
                verdict.rule,
                verdict.key,
                _limit(verdict),
                Cell(
                    ("allowed" if allowed else "refused")
                    + (f" ({verdict.shadow_kind})" if verdict.shadow_kind else ""),
                    "green" if allowed else "red",
                ),
                _remaining(verdict),
                in_words(verdict.retry_after_us) if verdict.retry_after_us else None,
            )
        )
    titles = ("rule", "key", "limit", "", "remaining", "retry after")
    return [TextTable(titles, rows, right_aligned=("remaining", "retry after"))] if rows else []
