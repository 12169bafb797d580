"""Suggests limits from log files, and replays them, in one call each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike, fspath

from headgate.errors import InvalidLog
from headgate.rules.condition import Condition
from headgate.rules.keys import Dimension, key_builder
from headgate.rules.matching.used_attributes import tested_attributes
from headgate.rules.rule import Rulebook
from headgate.traffic.call_table import CallTable
from headgate.traffic.log_summary import LogSummary
from headgate.traffic.reader import LogReader, ReadOptions
from headgate.traffic.replay import Replay, enforced, needed_attributes, replay_calls
from headgate.traffic.suggestion import Suggestion, suggest_limit
from headgate.traffic.where_condition import parse_where

ALL_CALLS = "all"
EVIDENCE = frozenset({"path", "header.user-agent"})  # attributes that tell what a heavy key looks like

Logs = Sequence[str | PathLike[str]]
OnProgress = Callable[[float | None], None]


def parse_dimensions(text: str) -> list[Dimension]:
    """Parses whose calls count together: "address", "user,path", or "all" for one count.

    >>> [dimension.name for dimension in parse_dimensions("user, address/24")]
    ['user', 'address']
    """
    return [] if text == ALL_CALLS else [Dimension.parse(name.strip()) for name in text.split(",")]


def read_table(reader: LogReader, by: Sequence[Dimension], where: Condition | None) -> CallTable:
    """Reads the calls that a condition selects into a table by key. Raises InvalidLog if there are none."""
    table = CallTable(key_builder(by, blank=False), None if where is None else where.holds)
    names = [dimension.name for dimension in by]
    checked = False
    for batch in reader.batches():
        if not checked:
            _check_attributes(reader, names, () if where is None else tested_attributes(where))
            checked = True
        table.add(batch)
    if not len(table):
        if table.filtered:
            raise InvalidLog(f"The condition ({where}) matches none of {table.filtered:,} calls.")
        raise InvalidLog(f"None of {table.without_key:,} calls has a value for {', '.join(names)}.")
    if len(table) == 1:
        raise InvalidLog("There is only one call, which says nothing about a limit. Give a log of some hours.")
    return table


def attributes_to_read(by: Sequence[Dimension], where: Condition | None) -> frozenset[str]:
    """Returns the attributes that a suggestion needs."""
    tested = () if where is None else tested_attributes(where)
    return EVIDENCE | {dimension.name for dimension in by} | {*tested}


def suggest_from_logs(
    logs: Logs,
    by: str = "address",
    *,
    where: str | None = None,
    refuse_keys: float = 0.0,
    options: ReadOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Suggestion:
    """Suggests a limit from logs: for each `by`, for the calls that the condition `where` selects.

    >>> suggest_from_logs(["access.log"]).limit
    '1/s burst 5'
    """
    dimensions = parse_dimensions(by)
    condition = None if where is None else parse_where(where)
    needed = attributes_to_read(dimensions, condition)
    reader = LogReader(
        [fspath(log) for log in logs], replace(options or ReadOptions(), needed=needed), on_progress
    )
    table = read_table(reader, dimensions, condition)
    return suggest_limit(table, refuse_keys, reader.options.timezone(), on_progress)


def replay_logs(
    logs: Logs,
    rules: Rulebook,
    *,
    against: Rulebook | None = None,
    enforce: bool = False,
    max_listed: int = 0,
    options: ReadOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Replay:
    """Replays logs through a rulebook, and through another one to compare; `enforce` makes shadows live.

    >>> result = replay_logs(["access.log"], limit_rulebook("2/minute"))
    >>> result.calls, result.new.answers
    (60, [3, 0, 57])
    """
    if enforce:
        rules, against = enforced(rules), None if against is None else enforced(against)
    needed = needed_attributes(rules, *(() if against is None else (against,)))
    reader = LogReader(
        [fspath(log) for log in logs], replace(options or ReadOptions(), needed=needed), on_progress
    )
    return replay_calls(reader.batches(ahead=True), rules, against, max_listed)


def attribute_names(reader: LogReader) -> frozenset[str] | None:
    """Returns the attributes that calls of the logs may have; None: any."""
    attributes: frozenset[str] = frozenset()
    for summary in reader.summaries:
        if summary.call_attributes is None:
            return None
        attributes |= summary.call_attributes
    return attributes


def _check_attributes(reader: LogReader, counted: Sequence[str], tested: Iterable[str]) -> None:
    """Raises InvalidLog if a log lacks a field that calls are counted by, or all lack one that is tested."""
    for summary in reader.summaries:
        _check_names(counted, "calls are to be counted by {}", summary, summary.call_attributes)
        _check_names(tested, "the condition tests {}", summary, attribute_names(reader))


def _check_names(names: Iterable[str], use: str, summary: LogSummary, attributes: frozenset[str] | None) -> None:
    missing = next(
        (name for name in names if attributes and name not in attributes and not name.startswith("argument.")),
        None,
    )
    if attributes and missing:
        similar = get_close_matches(missing, attributes, 1)
        raise InvalidLog(
            f"{summary.name}: {use.format(missing)}, and this {summary.title} has no such field. "
            f"It has: {', '.join(sorted(attributes - {'request'}))}. "
            + (
                f"Did you mean {similar[0]}?"
                if similar
                else f"Give --field {missing}=FIELD if it has another name."
            )
        )
