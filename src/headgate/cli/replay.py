"""headgate replay: decides recorded traffic by a rulebook, on a clock that follows the log."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headgate.cli.command_parser import Commands, Misuse, command, whole_number
from headgate.cli.log_options import (
    add_log_options,
    check_target,
    log_document,
    open_logs,
    summary_lines,
    write_report,
)
from headgate.cli.output import Output, warn
from headgate.cli.progress import Progress
from headgate.cli.rulebook_option import print_warnings, warn_unmatched
from headgate.cli.text_style import Style
from headgate.cli.text_table import Cell, TextTable, Value
from headgate.rules import load
from headgate.rules.rule import Rulebook
from headgate.traffic.log_summary import format_span
from headgate.traffic.replay import Replay, RulebookPlayer, enforced, needed_attributes, replay_calls
from headgate.traffic.replay_counts import DELAYED, PASSED, REFUSED, RuleCounts, Timeline
from headgate.traffic.report.documents import replay_document
from headgate.traffic.report.replay_page import format_instant, replay_page
from headgate.traffic.suggest_and_replay import attribute_names
from headgate.traffic.unmatched_rules import describe_unmatched_rules

_COLUMNS = 70  # of the picture
_MAX_SHOWN_KEYS = 5


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "replay",
        run,
        "decide recorded traffic by a rulebook: what would pass, and who would be refused",
        "headgate replay access.log --rules rules.yaml --enforce",
        "headgate replay access.log --rules new.yaml --against old.yaml --changes 20 --html report.html",
        more="Runs the real limiter on a clock that follows the log. Needs no engine.",
    )
    add_log_options(parser)
    parser.add_argument("--rules", required=True, metavar="FILE", help="the rulebook")
    parser.add_argument("--against", metavar="FILE", help="another one, to be compared with")
    parser.add_argument("--enforce", action="store_true", help="treat rules in shadow mode as live")
    parser.add_argument(
        "--changes",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="list the first N calls that --against answers differently",
    )


def run(args: argparse.Namespace) -> Output:
    if args.changes and args.against is None:
        raise Misuse("--changes lists what another rulebook answers differently: say which, by --against FILE.")
    check_target(args.html, args.logs)
    new = _rulebook(args.rules, args)
    old = None if args.against is None else _rulebook(args.against, args)
    needed = needed_attributes(new, *(() if old is None else (old,)))
    progress = Progress("replaying")
    try:
        reader = open_logs(args, needed, progress)
        replay = replay_calls(reader.batches(ahead=True), new, old, args.changes)
    finally:
        progress.clear()
    read_lines = summary_lines(reader, as_json=args.json)
    if replay.new.without_duration:
        warn(
            f"{replay.new.without_duration:,} calls have no recorded duration, so slots were released at once.",
            as_json=args.json,
        )
    for name, book, player in ((args.rules, new, replay.new), (args.against, old, replay.old)):
        if book is not None and player is not None:
            decided = {rule for rule, _ in player.counts}
            warn_unmatched(name, describe_unmatched_rules(book, decided, attribute_names(reader)), args)
    document = {"logs": [log_document(summary) for summary in reader.summaries]} | replay_document(replay)
    names = Path(args.rules).name, None if args.against is None else Path(args.against).name
    written = write_report(args.html, replay_page(replay, *names, read_lines))
    return Output(document, [*read_lines, "", *_lines(replay, args), *written])


def _rulebook(path: str, args: argparse.Namespace) -> Rulebook:
    book = print_warnings(load.read(path), as_json=args.json)
    return enforced(book) if args.enforce else book


Line = str | tuple[str, str] | TextTable


def _lines(replay: Replay, args: argparse.Namespace) -> list[Line]:
    lines: list[Line] = [*_picture(replay.new.timeline), ""]
    players = [(args.rules, replay.new)] + ([(args.against, replay.old)] if replay.old is not None else [])
    lines += [_totals(players), "", _peaks(players)]
    for name, player in players:
        lines += ["", _rules(name, player), *_sampled_rules(player)]
    for counts in replay.new.counts.values():
        if counts.refused:
            lines += ["", _refused_keys(counts)]
    if replay.old is not None:
        lines += ["", *_differences(replay)]
    if recorded := replay.recorded.calls:
        lines += [
            "",
            f"recorded answers: {replay.recorded.same:,} of {recorded:,} are the same call by call, "
            f"{replay.recorded.same_groups:,} of {replay.recorded.groups:,} in number per key and instant",
        ]
    return lines


def _totals(players: list[tuple[str, RulebookPlayer]]) -> TextTable:
    titles = ("rulebook", "offered", "passed", "delayed", "refused")
    rows: list[tuple[Value, ...]] = []
    for name, player in players:
        answers = player.answers
        refused = Cell(answers[REFUSED], "red") if answers[REFUSED] else 0
        rows.append((name, sum(answers), answers[PASSED] + answers[DELAYED], answers[DELAYED], refused))
    return TextTable(titles, rows, right_aligned=titles[1:])


def _peaks(players: list[tuple[str, RulebookPlayer]]) -> TextTable:
    titles = ("at most", "offered/s", "offered/min", "passed/s", "passed/min")
    rows: list[tuple[Value, ...]] = []
    for name, player in players:
        timeline = player.timeline
        passed = timeline.passed_peak_second, timeline.passed_peak_minute
        rows.append((name, timeline.peak_second, timeline.peak_minute, *passed))
    return TextTable(titles, rows, right_aligned=titles[1:])


def _rules(name: str, player: RulebookPlayer) -> TextTable:
    titles = (f"rule of {name}", "", "offered", "passed", "delayed", "refused", "keys", "keys refused")
    rows: list[tuple[Value, ...]] = []
    for counts in player.counts.values():
        keys = counts.keys
        rows.append(
            (
                counts.rule,
                counts.shadow_kind or "live",
                counts.offered,
                counts.passed,
                counts.delayed,
                Cell(counts.refused, "red") if counts.refused else 0,
                keys.keys_text,
                f"{keys.refused_keys:,} ({keys.refused_keys / max(1, keys.keys):.1%})",
            )
        )
    return TextTable(titles, rows, right_aligned=titles[2:])


def _sampled_rules(player: RulebookPlayer) -> list[Line]:
    """Returns a line that names the rules whose number of keys is an estimate, if there are any."""
    sampled = [counts for counts in player.counts.values() if counts.keys.sampled > 1]
    if not sampled:
        return []
    names = ", ".join(dict.fromkeys(f'"{counts.rule}"' for counts in sampled))
    most = sampled[0].keys.max_keys
    return [
        f"keys of {names} are sampled: each has more than {most:,} keys, so their number is estimated from "
        "some that were not refused; calls and refused keys are exact"
    ]


def _refused_keys(counts: RuleCounts) -> TextTable:
    """Returns who is refused most by a rule: how often, since when, and for how long."""
    kind = f" ({counts.shadow_kind})" if counts.shadow_kind else ""
    titles = (f"most refused by {counts.rule}{kind}", "refused", "of", "since", "for")
    rows: list[tuple[Value, ...]] = [
        (
            each.key,
            each.refused,
            each.offered,
            format_instant(each.first_us),
            format_span(each.last_us - each.first_us),
        )
        for each in counts.keys.most_refused(_MAX_SHOWN_KEYS)
    ]
    return TextTable(titles, rows, right_aligned=titles[1:])


def _differences(replay: Replay) -> list[Line]:
    differences = replay.differences
    lines: list[Line] = [
        f"newly refused: {_counted(differences.newly_refused, 'call')} of "
        f"{_counted(len(differences.keys_newly_refused), 'key')}; newly passed: "
        f"{_counted(differences.newly_passed, 'call')} of {_counted(len(differences.keys_newly_passed), 'key')}"
    ]
    if differences.calls:
        rows: list[tuple[Value, ...]] = [
            (
                call.line,
                format_instant(call.time_us),
                call.key,
                Cell("passes", "green") if call.passed else Cell("refused", "red"),
                call.rule,
            )
            for call in differences.calls
        ]
        lines.append(TextTable(("line", "time", "key", "now", "rule"), rows, right_aligned=("line", "time")))
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _picture(timeline: Timeline) -> list[Line]:
    """Draws calls and refusals over time, each as a row of bars."""
    bars = timeline.bars(_COLUMNS)
    offered, refused = [sum(counts) for counts in bars.counts], [counts[REFUSED] for counts in bars.counts]
    levels = Style.on(sys.stdout).levels
    highest = max(offered)
    lines: list[Line] = []
    for name, values, color in (("offered", offered, "cyan"), ("refused", refused, "red")):
        steps = [ceil_level(value, highest, len(levels) - 1) for value in values]
        lines.append((f"{name}  {''.join(levels[step] for step in steps)}", color))
    span = format_span(bars.last_us - bars.first_us)
    lines.append(f"         from {format_instant(bars.first_us)} UTC, {span}; a full bar is {highest:,} calls")
    return lines


def ceil_level(value: float, highest: float, levels: int) -> int:
    """Returns the height of a bar; anything above nothing can be seen.

    >>> ceil_level(0, 100, 8), ceil_level(1, 100, 8), ceil_level(100, 100, 8)
    (0, 1, 8)
    """
    return -int(-value * levels // highest) if highest else 0
