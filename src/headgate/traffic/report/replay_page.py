"""The report of replay: what a rulebook would have done to recorded traffic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from headgate.traffic.log_summary import format_span
from headgate.traffic.replay import Differences, Replay, RulebookPlayer
from headgate.traffic.replay_counts import DELAYED, PASSED, REFUSED, Timeline
from headgate.traffic.report.html_page import cards, heading, html_page, paragraph, table
from headgate.traffic.report.svg_charts import MAX_BARS, Series, stacked_bars

_MAX_KEYS = 10


def replay_page(replay: Replay, rules: str, against: str | None, logs: Sequence[str]) -> str:
    """Returns the report as HTML."""
    answers, span = replay.new.answers, format_span(replay.last_us - replay.first_us)
    refused = f"{rules} refuses {answers[REFUSED] / sum(answers):.1%} of the calls"
    body = [
        heading("Replay", 1),
        *(paragraph(line, "soft") for line in logs),
        paragraph(refused, "big"),
        paragraph(
            f"These calls were recorded from {format_instant(replay.first_us)} UTC on, for {span}. The limiter "
            f"decided them again, by the rules in {rules}" + (f" and by those in {against}." if against else ".")
        ),
        *_player(replay.new, span, "Calls over time"),
    ]
    if replay.old is not None and against is not None:
        body += _differences(replay.differences, replay.old, against)
    return html_page(f"Replay of {rules}", body)


def _differences(differences: Differences, old: RulebookPlayer, against: str) -> list[str]:
    parts = [
        heading(f"Compared with {against}"),
        cards(
            [
                (f"{differences.newly_refused:,}", "calls newly refused"),
                (f"{len(differences.keys_newly_refused):,}", "clients with calls newly refused"),
                (f"{differences.newly_passed:,}", "calls newly passed"),
                (f"{old.answers[REFUSED]:,}", f"calls refused by {against}"),
            ]
        ),
        _timeline(old.timeline, f"Calls over time, by {against}"),
    ]
    if differences.calls:
        rows = [
            (call.key, "passes" if call.passed else "refused", call.rule, format_instant(call.time_us), call.line)
            for call in differences.calls
        ]
        titles = ("client", "now", "rule", "time (UTC)", "line of the log")
        parts += [heading("The first calls that differ"), table(titles, rows, numbers_from=3)]
    return parts


def _player(player: RulebookPlayer, span: str, title: str) -> list[str]:
    answers, timeline = player.answers, player.timeline
    delayed = [(f"{answers[DELAYED]:,}", "delayed")] if answers[DELAYED] else []
    parts = [
        cards(
            [
                (f"{sum(answers):,}", f"calls in {span}"),
                (f"{answers[PASSED]:,}", "passed at once"),
                *delayed,
                (f"{answers[REFUSED]:,}", "refused"),
                (f"{timeline.peak_minute:,}", "calls in the busiest minute"),
                (f"{timeline.passed_peak_minute:,}", "passed in the busiest minute"),
            ]
        ),
        _timeline(timeline, title),
        heading("Rules"),
        table(
            ("rule", "", "offered", "passed", "delayed", "refused", "clients", "of them refused"),
            [
                (
                    counts.rule,
                    counts.shadow_kind or "live",
                    counts.offered,
                    counts.passed,
                    counts.delayed,
                    counts.refused,
                    counts.keys.keys_text,
                    f"{counts.keys.refused_keys:,} ({counts.keys.refused_keys / max(1, counts.keys.keys):.1%})",
                )
                for counts in player.counts.values()
            ],
            numbers_from=2,
        ),
    ]
    for counts in player.counts.values():
        if counts.refused:
            kind = f" ({counts.shadow_kind})" if counts.shadow_kind else ""
            parts += [
                heading(f"Most refused by {counts.rule}{kind}"),
                table(
                    ("client", "refused", "of calls", "since (UTC)", "for"),
                    [
                        (
                            each.key,
                            each.refused,
                            each.offered,
                            format_instant(each.first_us),
                            format_span(each.last_us - each.first_us),
                        )
                        for each in counts.keys.most_refused(_MAX_KEYS)
                    ],
                ),
            ]
    return parts


def _timeline(timeline: Timeline, title: str) -> str:
    bars = timeline.bars(MAX_BARS)
    layers = [
        Series("passed", "passed", [counts[PASSED] for counts in bars.counts]),
        Series("delayed", "delayed", [counts[DELAYED] for counts in bars.counts]),
        Series("refused", "refused", [counts[REFUSED] for counts in bars.counts]),
    ]
    layers = [layer for layer in layers if layer.name != "delayed" or any(layer.values)]
    return stacked_bars(title, layers, [format_instant(bars.first_us), format_instant(bars.last_us)])


def format_instant(time_us: int) -> str:
    """Returns an instant in UTC, to the second.

    >>> format_instant(1_700_000_000_000_000)
    '2023-11-14 22:13:20'
    """
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
