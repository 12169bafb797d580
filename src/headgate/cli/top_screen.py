"""The screen of headgate top, computed from counts: rates of each rule, hot keys, processes. Pure: no terminal.

A rate is the mean of WINDOW_S seconds. They end LAG_S ago, because counts arrive up to that late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from headgate.cli.text_style import Style
from headgate.cli.text_table import Cell, TextTable, Value, printable
from headgate.telemetry.decision_counts import NO_RULE, DecisionCounts

WINDOW_S: Final = 10
LAG_S: Final = 2
MAX_SILENCE_S: Final = 10  # after which a process is no longer shown
SORTS: Final = ("refused", "calls", "name")
HELP: Final = "q quit   s sort   p pause   / filter"


class HotKeyRates(NamedTuple):
    """One key of a rule, and its calls and refusals in the last minute; `shadow`: refusals of a shadow rule."""

    rule: str
    key: str
    calls: int
    refused: int
    shadow: int = 0


class LimitMove(NamedTuple):
    """A change of an adaptive limit, with the time of day."""

    time: str
    rule: str
    key: str
    before: int
    after: int
    reason: str


class TopSnapshot(NamedTuple):
    """One screen: counts of WINDOW_S seconds by rule, hot keys, and how long ago each process wrote."""

    time: str
    rules: dict[str, DecisionCounts]
    keys: Sequence[HotKeyRates]
    processes: Sequence[tuple[str, int]]
    problem: str | None = None  # why nothing newer can be shown
    changes: Sequence[LimitMove] = ()  # of adaptive limits, the latest first
    degraded: Sequence[str] = ()  # the processes that decided without Redis lately, the busiest first


@dataclass(frozen=True)
class TopView:
    """The choices of the user: the order, a pause, a filter; and a filter that is being typed."""

    sort: str = SORTS[0]
    paused: bool = False
    filter: str = ""
    typing: str | None = None
    over: bool = False

    def on_key(self, key: str) -> TopView:
        """Returns the view after a key was pressed."""
        if self.typing is not None:
            return self._on_typed(key)
        match key:
            case "q" | "\x03" | "\x04":
                return replace(self, over=True)
            case "s":
                return replace(self, sort=SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])
            case "p" | " ":
                return replace(self, paused=not self.paused)
            case "/":
                return replace(self, typing=self.filter)
            case "\x1b":
                return replace(self, filter="")
        return self

    def _on_typed(self, key: str) -> TopView:
        typed = self.typing or ""
        match key:
            case "\r" | "\n":
                return replace(self, filter=typed, typing=None)
            case "\x1b" | "\x03":
                return replace(self, typing=None)
            case "\x7f" | "\b":
                return replace(self, typing=typed[:-1])
        return replace(self, typing=typed + key if key.isprintable() else typed)


def screen(snapshot: TopSnapshot, view: TopView, width: int, height: int, style: Style) -> list[str]:
    """Returns the lines of the whole screen; hot keys take what room the rules leave."""
    rules = sorted(
        ((rule, counts) for rule, counts in snapshot.rules.items() if view.filter in rule and _has_calls(counts)),
        key=lambda each: _order(view.sort, *each),
    )
    keys = [key for key in snapshot.keys if view.filter in key.rule or view.filter in key.key]
    head = [_title(snapshot, view, width, style), *_status(snapshot, width, style), ""]
    changes = [change for change in snapshot.changes if view.filter in change.rule or view.filter in change.key]
    head += _change_table(changes, width, style)
    room = max(0, height - len(head) - 1)
    rule_lines = _rule_table(rules, width, style) if rules else [_reason_for_no_rules(snapshot, view)[:width]]
    shown = rule_lines[: max(3, room - 6 if keys else room)]
    if len(shown) < len(rule_lines):
        shown[-1] = style(f"... and {len(rule_lines) - len(shown) + 1} more rules; / filters", "dim")
    key_lines = ["", *_key_table(keys, width, style)] if keys else []
    body = [*shown, *key_lines[: room - len(shown)]]
    return [*head, *body, *[""] * (room - len(body)), _footer(view, width, style)][:height]


def _order(sort: str, rule: str, counts: DecisionCounts) -> tuple[int, str]:
    all_refused = counts.refused + counts.shed + counts.shadow_refused + counts.candidate_refused
    number = {"refused": all_refused, "calls": _calls(counts), "name": 0}[sort]
    return -number, rule


def _calls(counts: DecisionCounts) -> int:
    return counts.calls + counts.shadow_calls


def _has_calls(counts: DecisionCounts) -> bool:
    return bool(_calls(counts) or counts.candidate_calls)


def _reason_for_no_rules(snapshot: TopSnapshot, view: TopView) -> str:
    if any(map(_has_calls, snapshot.rules.values())):
        return f"No rule has {printable(view.filter)!r} in its name; Esc shows all."
    return "Nothing was counted in the last seconds."


def _title(snapshot: TopSnapshot, view: TopView, width: int, style: Style) -> str:
    total = sum(map(_calls, snapshot.rules.values())) / WINDOW_S
    refused = sum(counts.refused + counts.shed for counts in snapshot.rules.values()) / WINDOW_S
    state = "   PAUSED" if view.paused else ""
    text = f"headgate top   {snapshot.time}   {_rate(total)} verdicts/s, {_rate(refused)} refused/s{state}"
    return style(text[:width], "bold")


def _status(snapshot: TopSnapshot, width: int, style: Style) -> list[str]:
    """Returns a line about the processes, and one about what is wrong."""
    live = [name for name, age_s in snapshot.processes if age_s <= MAX_SILENCE_S]
    names = ", ".join(map(printable, live))
    lines = [f"{len(live)} {'process' if len(live) == 1 else 'processes'}{': ' if live else ''}{names}"]
    if len(lines[0]) > width:
        lines[0] = lines[0][: width - 3] + "..."
    degraded = sum(counts.degraded for counts in snapshot.rules.values())
    errors = sum(counts.errors for counts in snapshot.rules.values())
    warnings = []
    if snapshot.problem is not None:
        warnings.append(printable(snapshot.problem))
    else:
        if degraded:
            by = ", ".join(map(printable, snapshot.degraded))
            rate = _rate(degraded / WINDOW_S)
            warnings.append(f"DEGRADED: {rate} calls/s are decided without Redis{by and f', by {by}'}")
        if errors:
            warnings.append(f"ERRORS: {_rate(errors / WINDOW_S)} calls/s cannot be decided")
    return lines + [style(text if len(text) <= width else f"{text[: width - 3]}...", "red") for text in warnings]


def _rule_table(rules: Sequence[tuple[str, DecisionCounts]], width: int, style: Style) -> list[str]:
    titles = ("rule", "calls/s", "refused", "%", "delayed", "shadow", "candid.", "degraded")
    rows = [_rule_row(rule, counts) for rule, counts in rules]
    # A column that is zero for every rule is left out.
    used = [column for column in range(len(titles)) if column < 4 or any(row[column] != "0" for row in rows)]
    table = TextTable(
        [titles[column] for column in used],
        [[row[column] for column in used] for row in rows],
        [titles[column] for column in used[1:]],
    )
    return table.lines(width, style)


def _rule_row(rule: str, counts: DecisionCounts) -> list[Value]:
    calls, refused = _calls(counts), counts.refused + counts.shed
    share = f"{100 * refused / calls:.0f}" if calls else "0"
    numbers = [calls, refused, counts.delayed, counts.shadow_refused, counts.candidate_refused, counts.degraded]
    rates = [_rate(number / WINDOW_S) for number in numbers]
    shown: list[Value] = [
        "(no rule)" if rule == NO_RULE else rule,
        rates[0],
        Cell(rates[1], "red") if refused else rates[1],
        share,
        *rates[2:],
    ]
    return shown


def _key_table(keys: Sequence[HotKeyRates], width: int, style: Style) -> list[str]:
    titles = ["hot keys of the last minute", "key", "calls", "refused", "shadow"]
    rows: list[list[Value]] = [
        [key.rule, key.key, key.calls, Cell(key.refused, "red") if key.refused else 0, key.shadow] for key in keys
    ]
    if not any(key.shadow for key in keys):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return TextTable(titles, rows, titles[2:]).lines(width, style)


def _change_table(changes: Sequence[LimitMove], width: int, style: Style) -> list[str]:
    """Returns the latest changes of adaptive limits, and an empty line; nothing if there were none."""
    if not changes:
        return []
    titles = ["adaptive limits moved", "key", "at", "from", "to", "because"]
    rows: list[list[Value]] = [
        [each.rule, each.key, each.time, each.before, each.after, each.reason] for each in changes
    ]
    return [*TextTable(titles, rows, ["from", "to"]).lines(width, style), ""]


def _footer(view: TopView, width: int, style: Style) -> str:
    if view.typing is not None:
        return f"filter: {view.typing}_"[:width]
    chosen = f"by {view.sort}" + (f", only {view.filter!r}" if view.filter else "")
    return style(f"{HELP}   {chosen}"[:width], "dim")


def _rate(number: float) -> str:
    """Returns a rate in at most five characters."""
    if number >= 99_950:
        return f"{number / 1000:,.0f}k"
    if number >= 100 or number == int(number):
        return f"{number:.0f}"
    return f"{number:.1f}"
