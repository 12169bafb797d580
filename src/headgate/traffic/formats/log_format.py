"""LogFormat: how the lines of a log are split into fields.

A format splits a line (`split`) into values, whose names are `names`. Text formats do that by a regular
expression; docs/reference/traffic.md lists them. A line that the format does not fit is unreadable, unless the
format is a user's pattern, which says which lines count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Split = Callable[[str], "Sequence[Any] | None"]


@dataclass(frozen=True)
class LogFormat:
    """A way to split lines: its title, the names of its fields, and the function that splits."""

    title: str  # "combined log"
    names: Sequence[str]
    split: Split
    duration_unit_us: int | None = None  # of a field `duration`; None: by its name
    has_header: bool = False  # the first line names the fields
    selects: bool = False  # lines that do not fit are left out, and are no error


def regex_format(
    title: str, expression: str, names: Sequence[str], lenient: str | None = None, **options: Any
) -> LogFormat:
    """Returns the format of lines that match an expression whose groups are the fields, in order.

    `lenient` is tried on lines that the expression does not fit.
    """
    match = re.compile(expression).match
    match_again = None if lenient is None else re.compile(lenient).match

    def split(line: str) -> Sequence[str | None] | None:
        found = match(line)
        if found is None and match_again is not None:
            found = match_again(line)
        return None if found is None else found.groups()

    return LogFormat(title, names, split, **options)


# What syslog, Docker Compose and Kubernetes write in front of a line.
_PREFIX = (
    r"(?:(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ \S+: "
    r"|\d{4}-\d\d-\d\dT\S+ std(?:out|err) [FP] |[\w.-]+ +\| )?"
)
_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_CLIENT = r"(\S+) \S+ ([^\[]*?) ?\[([^\]]+)\]"
_COMMON = rf"{_CLIENT} {_QUOTED} (\d{{3}}|-) (?:\d+|-)"
_COMMON_UNESCAPED = rf'{_CLIENT} "(.*?)" (\d{{3}}|-) (?:\d+|-)'  # quotes inside of quotes
_COMMON_NAMES = ("remote_addr", "remote_user", "time", "request", "status")
_ENVOY_ADDRESSES = 7, -1  # X-Forwarded-For, and the address of the connection, which only Istio writes

COMBINED = regex_format(
    "combined log",
    rf'{_PREFIX}"?{_COMMON} {_QUOTED} {_QUOTED}',
    (*_COMMON_NAMES, "http_referer", "http_user_agent"),
    rf'{_PREFIX}"?{_COMMON_UNESCAPED} "(.*?)" "(.*)"',
)
COMMON = regex_format(
    "common log",
    rf'{_PREFIX}"?{_COMMON}"?\s*$',
    _COMMON_NAMES,
    rf'{_PREFIX}"?{_COMMON_UNESCAPED}"?\s*$',
)
VHOST_COMBINED = regex_format(
    "combined log with virtual hosts",
    rf'{_PREFIX}"?(\S+:\d+) (?=\S+ \S+ \S+ \[){_COMMON} {_QUOTED} {_QUOTED}',
    ("vhost", *_COMMON_NAMES, "http_referer", "http_user_agent"),
)
_ENVOY_TEXT = regex_format(
    "Envoy log",
    rf"\[([^\]]+)\] {_QUOTED} (\d+|-) \S+ (?:\S+ )?(?:\S+ )?(?:{_QUOTED} )?(\d+|-) (\d+|-) (\d+|-) (?:\d+|-) "
    rf'{_QUOTED} {_QUOTED} {_QUOTED} {_QUOTED}(?: "[^"]*" \S+ \S+ \S+ (\S+))?',
    (
        *("start_time", "request", "response_code", "failure", "bytes_received", "bytes_sent", "duration"),
        *("x_forwarded_for", "user_agent", "request_id", "authority", "downstream_remote"),
    ),
)


def _split_envoy(line: str) -> Sequence[str | None] | None:
    """Splits a line of Envoy; without X-Forwarded-For, the client is the other end of the connection."""
    values = _ENVOY_TEXT.split(line)
    forwarded, connection = _ENVOY_ADDRESSES
    if values is None or values[forwarded] != "-":
        return values
    return [*values[:forwarded], values[connection], *values[forwarded + 1 :]]


ENVOY = replace(_ENVOY_TEXT, split=_split_envoy, duration_unit_us=1_000)
TEXT_FORMATS = (VHOST_COMBINED, COMBINED, COMMON, ENVOY)  # of equals the first
NAMED_FORMATS = {"combined": COMBINED, "common": COMMON, "envoy": ENVOY}
