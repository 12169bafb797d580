"""Lines by a pattern of the user: a regular expression with named groups, as for syslog.

    Failed password for (?:invalid user )?(?P<user>\\S+) from (?P<address>\\S+)

The time is the group `time` (timestamp, ts and so on), or else the time at the beginning of a syslog line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headgate.errors import InvalidLog
from headgate.traffic.formats.field_names import TIME, map_fields, synonyms_of
from headgate.traffic.formats.log_format import LogFormat

_syslog_time = re.compile(
    r"(?:<\d+>1? ?)?(\w{3} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*) "
)
_TIME_GROUPS = synonyms_of(TIME)


def pattern_format(expression: str, mapping: Mapping[str, str]) -> LogFormat:
    """Returns the format of lines in which a pattern is found; its groups are the fields."""
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise InvalidLog(f"The pattern is no regular expression: {error}.") from None
    names = list(pattern.groupindex)
    if not names:
        raise InvalidLog(
            "The pattern names no field: write a group such as (?P<address>\\S+) for each field that counts."
        )
    has_time = TIME in mapping or TIME in map_fields(names, {})
    numbers = [pattern.groupindex[name] for name in names]

    def split(line: str) -> Sequence[str | None] | None:
        found = pattern.search(line)
        if found is None:
            return None
        values = [found[number] for number in numbers]
        if has_time:
            return values
        at = _syslog_time.match(line)
        if at is None:
            raise ValueError(
                f"it does not begin with a time, and the pattern has none of the groups {_TIME_GROUPS}"
            )
        return [at[1], *values]

    title = "lines by a pattern" if has_time else "syslog lines by a pattern"
    return LogFormat(title, names if has_time else ["time", *names], split, selects=True)
