"""The report of suggest: a page for somebody who has to agree to a limit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headgate.traffic.log_summary import format_span
from headgate.traffic.rate_burst_frontier import MINUTE
from headgate.traffic.report.html_page import cards, heading, html_page, paragraph, table
from headgate.traffic.report.svg_charts import Series, log_lines
from headgate.traffic.suggest_and_replay import ALL_CALLS
from headgate.traffic.suggestion import MAX_REFUSED_SHARE, Suggestion

_LINES = (
    ("half of the clients", "first", "p50"),
    ("99 %", "second dashed", "p99"),
    ("all ordinary clients", "fourth", "all_keys"),
)


def suggestion_page(suggestion: Suggestion, by: str, logs: Sequence[str], rulebook: str) -> str:
    """Returns the report as HTML."""
    expected = suggestion.expected
    body = [
        heading("Suggested limit", 1),
        *(paragraph(line, "soft") for line in logs),
        paragraph(f"{suggestion.limit}, {_for_whom(by)}", "big"),
        paragraph(
            f"A client may send {suggestion.burst} calls at once, and {suggestion.rate} on and on. Ordinary "
            f"clients of this log needed {suggestion.needed_burst} at once; the rest is headroom."
        ),
        cards(
            [
                (f"{suggestion.calls:,}", "calls"),
                (f"{suggestion.keys:,}", "clients"),
                (format_span(suggestion.last_us - suggestion.first_us), "of traffic"),
                (f"{expected.refused_keys:,} of {expected.keys:,}", "clients refused, if enforced"),
                (f"{expected.refused_calls / max(1, expected.calls):.1%}", "of calls refused, if enforced"),
            ]
        ),
        heading("Does it hold?"),
        paragraph(_confirmation(suggestion)),
        heading("The choice"),
        _chart(suggestion),
        paragraph("Under a line, some of these clients would be refused; above it, none.", "soft"),
        heading("What clients do"),
        table(
            (
                f"most {'units' if suggestion.has_costs else 'calls'} of a client per",
                "p50",
                "p90",
                "p99",
                "p99.9",
                "max",
            ),
            suggestion.demand,
        ),
    ]
    if suggestion.heavy_keys:
        body += [
            heading("Heavy clients, set apart"),
            paragraph("Each needs far more than all others, so the limit was not made to fit them.", "soft"),
            table(
                ("client", "looks like", "calls", "max a minute", "paths", "errors"),
                [
                    (
                        each.key,
                        each.looks_like,
                        each.calls,
                        each.per_minute,
                        each.paths,
                        None if each.errors is None else f"{each.errors:.0%}",
                    )
                    for each in suggestion.heavy_keys[:20]
                ],
                numbers_from=2,
            ),
        ]
    if suggestion.day_parts:
        body += [
            heading("Day and night"),
            table(("", "hours", "calls", "clients", "p99 a minute", "max a minute"), suggestion.day_parts, 2),
        ]
    body += [heading("The rulebook"), f"<pre>{escape(rulebook)}</pre>"]
    return html_page(f"Suggested limit: {suggestion.limit}", body)


def _for_whom(by: str) -> str:
    """Returns whose calls count together.

    >>> _for_whom("user, path"), _for_whom("all")
    ('for each user and path', 'for all calls together')
    """
    if by == ALL_CALLS:
        return "for all calls together"
    return f"for each {' and '.join(name.strip() for name in by.split(','))}"


def _confirmation(suggestion: Suggestion) -> str:
    confirmation = suggestion.confirmation
    ordinary = confirmation.ordinary
    refused = f"{ordinary.refused_keys:,} of {ordinary.keys:,} ordinary clients ({ordinary.key_share:.2%})"
    if suggestion.chosen_again and confirmation.enough:
        return (
            f"The first two thirds of the log chose {confirmation.limit}, but in the last third that refuses "
            f"{refused}. So the whole log chose again, and nothing is left to confirm it: let the rule "
            "run in shadow mode before you enforce it."
        )
    if suggestion.chosen_again:
        return (
            f"The log has too few clients to confirm anything: {confirmation.choosing_keys:,} in its first two "
            f"thirds, {ordinary.keys:,} in the last. So the whole log chose the limit: let the rule run in shadow "
            "mode before you enforce it."
        )
    return (
        f"The limit was chosen from the first two thirds of the log. In the last third it refuses {refused}."
        + _verdict(suggestion)
    )


def _verdict(suggestion: Suggestion) -> str:
    if not suggestion.confirmation.enough:
        return " These are too few clients to confirm anything."
    if not suggestion.confirmed:
        return " Look at these clients before you enforce it."
    largest = suggestion.confirmation.ordinary.largest_key_share
    if largest > max(suggestion.refuse_keys, MAX_REFUSED_SHARE):
        return f" So it holds. As many as {largest:.1%} of others may be refused (95% confidence: these are few)."
    return " So it holds."


def _chart(suggestion: Suggestion) -> str:
    per_minute = [point.rate.units_in(MINUTE) for point in suggestion.frontier]
    lines = [
        Series(name, color, [getattr(point, field) for point in suggestion.frontier])
        for name, color, field in _LINES
    ]
    mark = suggestion.rate.units_in(MINUTE), float(suggestion.burst), suggestion.limit
    return log_lines("Burst that refuses no call, by rate", lines, per_minute, "calls a minute", mark)
