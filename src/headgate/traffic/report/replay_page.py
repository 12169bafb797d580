"""The report of replay: what a rulebook would have done to recorded traffic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from headgate.traffic.log_summary import format_span
from headgate.traffic.replay import Replay, RulebookPlayer
from headgate.traffic.replay_counts import DELAYED, PASSED, REFUSED, Timeline
from headgate.traffic.report.html_page import cards, heading, html_page, paragraph, table
from headgate.traffic.report.svg_charts import Series, stacked_bars

_MAX_KEYS = 10


def replay_page(replay: Replay, rules: str, against: str | None, logs: Sequence[str]) -> str:
    """Returns the report as HTML."""
    body = [heading("Replay", 1), *(paragraph(line, "soft") for line in logs)]
    body.append(paragraph(f"The recorded calls, decided by {rules}" + (f" and by {against}." if against else ".")))
    body += _player(replay.new, replay.last_us - replay.first_us)
    if replay.old is not None:
        differences = replay.differences
        body += [
            heading(f"Compared with {against}"),
            cards(
                [
                    (f"{differences.newly_refused:,}", "calls newly refused"),
                    (f"{len(differences.keys_newly_refused):,}", "clients newly refused something"),
                    (f"{differences.newly_passed:,}", "calls newly passed"),
                    (f"{replay.old.answers[REFUSED]:,}", "calls refused before"),
                ]
            ),
        ]
    return html_page(f"Replay of {rules}", body)


def _player(player: RulebookPlayer, span_us: int) -> list[str]:
    answers, timeline = player.answers, player.timeline
    parts = [
        cards(
            [
                (f"{sum(answers):,}", f"calls in {format_span(span_us)}"),
                (f"{answers[PASSED]:,}", "passed at once"),
                (f"{answers[DELAYED]:,}", "delayed"),
                (f"{answers[REFUSED]:,}", "refused"),
                (f"{timeline.peak_second:,} / {timeline.peak_minute:,}", "at most offered a second / a minute"),
            ]
        ),
        _timeline(timeline),
        heading("Rules"),
        table(
            ("rule", "", "offered", "passed", "delayed", "refused", "clients", "clients refused"),
            [
                (
                    counts.rule,
                    counts.shadow_kind or "live",
                    counts.offered,
                    counts.passed,
                    counts.delayed,
                    counts.refused,
                    counts.keys.keys,
                    counts.keys.refused_keys,
                )
                for counts in player.counts.values()
            ],
            numbers_from=2,
        ),
    ]
    for counts in player.counts.values():
        if counts.refused:
            parts += [
                heading(
                    f"Most refused by {counts.rule}" + (f" ({counts.shadow_kind})" if counts.shadow_kind else "")
                ),
                table(
                    ("client", "refused", "of calls", "since"),
                    [
                        (each.key, each.refused, each.offered, format_instant(each.first_us))
                        for each in counts.keys.most_refused(_MAX_KEYS)
                    ],
                ),
            ]
    return parts


def _timeline(timeline: Timeline) -> str:
    minutes = timeline.minutes
    first, last = min(minutes), max(minutes)
    filled = [minutes.get(minute, (0, 0, 0)) for minute in range(first, last + 1)]
    layers = [
        Series("passed", "passed", [counts[PASSED] for counts in filled]),
        Series("delayed", "delayed", [counts[DELAYED] for counts in filled]),
        Series("refused", "refused", [counts[REFUSED] for counts in filled]),
    ]
    labels = [format_instant(minute * 60_000_000) for minute in (first, last)]
    return stacked_bars("Calls over time", layers, labels)


def format_instant(time_us: int) -> str:
    """Returns an instant in UTC, to the second.

    >>> format_instant(1_700_000_000_000_000)
    '2023-11-14 22:13:20'
    """
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
