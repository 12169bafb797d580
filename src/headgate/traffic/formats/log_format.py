"""LogFormat: how the lines of a log are split into fields.

A format splits a line (`split`) into values, whose names are `names`. Text formats do that by a regular
expression; docs/reference/traffic.md lists them. A line that the format does not fit is unreadable, unless the
format is a user's pattern, which says which lines count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


def regex_format(title: str, expression: str, names: Sequence[str], **options: Any) -> LogFormat:
    """Returns the format of lines that match an expression whose groups are the fields, in order."""
    match = re.compile(expression).match

    def split(line: str) -> Sequence[str | None] | None:
        found = match(line)
        return None if found is None else found.groups()

    return LogFormat(title, names, split, **options)


_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_COMMON = rf"(\S+) \S+ ([^\[]*?) ?\[([^\]]+)\] {_QUOTED} (\d{{3}}|-) (?:\d+|-)"
_COMMON_NAMES = ("remote_addr", "remote_user", "time", "request", "status")

COMBINED = regex_format(
    "combined log",
    rf'"?{_COMMON} {_QUOTED} {_QUOTED}',
    (*_COMMON_NAMES, "http_referer", "http_user_agent"),
)
COMMON = regex_format("common log", rf'"?{_COMMON}"?\s*$', _COMMON_NAMES)
VHOST_COMBINED = regex_format(
    "combined log with virtual hosts",
    rf'"?(\S+:\d+) (?=\S+ \S+ \S+ \[){_COMMON} {_QUOTED} {_QUOTED}',
    ("vhost", *_COMMON_NAMES, "http_referer", "http_user_agent"),
)
ENVOY = regex_format(
    "Envoy log",
    rf"\[([^\]]+)\] {_QUOTED} (\d+|-) \S+ (?:\S+ )?(?:\S+ )?(?:{_QUOTED} )?(\d+|-) (\d+|-) (\d+|-) (?:\d+|-) "
    rf"{_QUOTED} {_QUOTED} {_QUOTED} {_QUOTED}",
    (
        *("start_time", "request", "response_code", "failure", "bytes_received", "bytes_sent", "duration"),
        *("x_forwarded_for", "user_agent", "request_id", "authority"),
    ),
    duration_unit_us=1_000,
)
TEXT_FORMATS = (VHOST_COMBINED, COMBINED, COMMON, ENVOY)  # of equals the first
NAMED_FORMATS = {"combined": COMBINED, "common": COMMON, "envoy": ENVOY}
