"""The report of suggest: a page for somebody who has to agree to a limit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headgate.traffic.log_summary import format_span
from headgate.traffic.rate_burst_frontier import MINUTE
from headgate.traffic.report.html_page import cards, heading, html_page, paragraph, table
from headgate.traffic.report.svg_charts import Series, log_lines
from headgate.traffic.suggest_and_replay import ALL_CALLS
from headgate.traffic.suggestion import Suggestion

_LINES = (
    ("half of the clients", "first", "p50"),
    ("99 %", "second dashed", "p99"),
    ("all ordinary clients", "fourth", "all_keys"),
)


def suggestion_page(suggestion: Suggestion, by: str, logs: Sequence[str], rulebook: str) -> str:
    """Returns the report as HTML."""
    ordinary, expected = suggestion.confirmation.ordinary, suggestion.expected
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
        paragraph(
            f"The limit was chosen from the first two thirds of the log. In the last third it refuses "
            f"{ordinary.refused_keys:,} of {ordinary.keys:,} ordinary clients ({ordinary.key_share:.2%})."
            + _verdict(suggestion)
        ),
        heading("The choice"),
        _chart(suggestion),
        paragraph("Under a line, some of these clients would be refused; above it, none.", "soft"),
        heading("What clients do"),
        table(("most calls of a client per", "p50", "p90", "p99", "p99.9", "max"), suggestion.demand),
    ]
    if suggestion.heavy_keys:
        body += [
            heading("Heavy clients, set apart"),
            paragraph("They need far more than all others, and the limit refuses most of their calls.", "soft"),
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


def _verdict(suggestion: Suggestion) -> str:
    if not suggestion.confirmation.enough:
        return " These are too few clients to confirm anything."
    return " So it holds." if suggestion.confirmed else " Look at these clients before you enforce it."


def _chart(suggestion: Suggestion) -> str:
    per_minute = [point.rate.units_in(MINUTE) for point in suggestion.frontier]
    lines = [
        Series(name, color, [getattr(point, field) for point in suggestion.frontier])
        for name, color, field in _LINES
    ]
    mark = suggestion.rate.units_in(MINUTE), float(suggestion.burst), suggestion.limit
    return log_lines("Burst that refuses no call, by rate", lines, per_minute, "calls a minute", mark)
