"""Writes a suggestion as a rulebook in shadow mode, with its reasons as comments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from headgate.algorithms.limit import Limit
from headgate.algorithms.lockout import Lockout
from headgate.limit_syntax import parse
from headgate.rules.condition import Condition
from headgate.rules.keys import Dimension
from headgate.rules.rule import Choice, Modes, Rule, Rulebook
from headgate.rules.serialization import document, yaml_text
from headgate.traffic.rate_burst_frontier import HOUR, MINUTE
from headgate.traffic.suggestion import MIN_HEADROOM_UNITS, Suggestion

_SHADOW = Modes(enforce=0, shadow=10_000)
_LOCKOUT_WITHIN_US, _LOCKOUT_US = 10 * MINUTE, HOUR
_MAX_NAMED_KEYS = 10


def suggested_rulebook(
    suggestion: Suggestion, by: Sequence[Dimension], where: Condition | None = None, *, lockout: bool = False
) -> Rulebook:
    """Returns the rulebook of a suggestion: one rule, in shadow mode.

    `lockout` also locks out, for an hour, a key that was refused a whole burst more within ten minutes.
    """
    lock = Lockout(suggestion.burst, _LOCKOUT_WITHIN_US, _LOCKOUT_US) if lockout else None
    return Rulebook(rules=(replace(shadow_rule(parse(suggestion.limit), by, where), lockout=lock),))


def shadow_rule(limit: Limit, by: Sequence[Dimension], where: Condition | None = None) -> Rule:
    """Returns a rule in shadow mode, named after what it counts by.

    >>> shadow_rule(parse("1/s burst 5"), [Dimension("address")]).name
    'per-address'
    """
    return Rule(
        name="per-" + "-".join(dimension.name.replace(".", "-") for dimension in by) if by else "all-calls",
        limit=Choice((limit,)),
        when=where,
        key=tuple(by),
        missing="skip",
        mode=_SHADOW,
    )


def rulebook_text(suggestion: Suggestion, book: Rulebook, sources: Sequence[str]) -> str:
    """Returns the rulebook as YAML, with the reasoning and the expected refusals as comments."""
    [rule] = book.rules
    comments = {"": "\n".join(_heading(sources)), rule.name: "\n".join(_reasons(suggestion, rule))}
    return yaml_text(document(book), comments)


def _heading(sources: Sequence[str]) -> list[str]:
    return [
        f"Suggested by headgate from {', '.join(sources)}.",
        "In shadow mode: it reports, and refuses nobody. Replay it with --enforce before you enforce it.",
        "",
    ]


def _headroom_reason(suggestion: Suggestion) -> str:
    if suggestion.burst == ceil(suggestion.needed_burst * suggestion.headroom):
        return f"times {suggestion.headroom:.2g} for headroom, rounded up"
    return f"and {MIN_HEADROOM_UNITS} more for headroom"


def _confirmation_reasons(suggestion: Suggestion) -> list[str]:
    confirmation = suggestion.confirmation
    ordinary = confirmation.ordinary
    refused = f"{ordinary.refused_keys:,} of {ordinary.keys:,} keys refused ({ordinary.key_share:.2%})"
    if suggestion.chosen_again:
        if not confirmation.enough:
            return [
                f"Two thirds of the log have {confirmation.choosing_keys:,} ordinary keys, the rest has "
                f"{ordinary.keys:,}: too few to confirm anything, so the whole log chose."
            ]
        return [
            f"Two thirds of the log chose {confirmation.limit}, but on the last third: {refused}.",
            "So the whole log chose again, and nothing is left to confirm it.",
        ]
    return [f"On the last third of the log, not used to choose: {refused}."]


def _reasons(suggestion: Suggestion, rule: Rule) -> list[str]:
    expected = suggestion.expected
    refuses = "no key" if not suggestion.refuse_keys else f"at most {suggestion.refuse_keys:.2%} of the keys"
    lines = [
        f"{suggestion.calls:,} calls of {suggestion.keys:,} keys.",
        f"At {suggestion.rate} a burst of {suggestion.needed_burst} refuses {refuses}, heavy keys set apart; "
        f"{_headroom_reason(suggestion)}: {suggestion.burst}.",
        *_confirmation_reasons(suggestion),
        f"Expected on the whole log, enforced: {expected.refused_calls:,} of {expected.calls:,} calls refused, of "
        f"{expected.refused_keys:,} of {expected.keys:,} keys.",
    ]
    if rule.lockout is not None:
        lines.append("A key that goes on until it was refused as often again is locked out: no other key is.")
        lines.append("The lockout refuses more calls of these keys than expected above; a replay counts them.")
    if suggestion.heavy_keys:
        lines.append("Heavy keys, set apart. Exempt those that you know by except: {address: 192.0.2.7}")
        lines += [
            f"  {each.key}: {each.calls:,} calls, up to {each.per_minute:,} a minute; looks like {each.looks_like}"
            for each in suggestion.heavy_keys[:_MAX_NAMED_KEYS]
        ]
        if len(suggestion.heavy_keys) > _MAX_NAMED_KEYS:
            lines.append(f"  and {len(suggestion.heavy_keys) - _MAX_NAMED_KEYS:,} more")
    return lines
