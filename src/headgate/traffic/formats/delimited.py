"""Splits CSV and TSV. The first line names the columns, or a mapping gives their numbers.

If one column is called date and another one time, they are the time together.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

from headgate.traffic.formats.field_names import TIME, map_fields, simplify
from headgate.traffic.formats.log_format import LogFormat

_TITLES = {"\t": "TSV", ",": "CSV", ";": "CSV", "|": "CSV"}


def delimited_format(sample: Sequence[str], mapping: Mapping[str, str]) -> LogFormat | None:
    """Returns the format of delimited lines; None if the first line names no time, and the mapping neither."""
    delimiter = max(_TITLES, key=sample[0].count)
    if delimiter not in sample[0]:
        delimiter = ","  # a single column
    names = _split(sample[0], delimiter)
    numbered = TIME in mapping and mapping[TIME].isdecimal() and mapping[TIME] not in names
    if numbered:
        width = max(len(_split(line, delimiter)) for line in sample)
        names = [f"column_{number}" for number in range(1, width + 1)]
    elif TIME not in mapping and TIME not in map_fields(names, {}):
        return None
    width = len([name for name in names if name])
    simple = [simplify(name) for name in names]
    in_two = TIME not in mapping and {"date", "time"} <= {*simple}
    time, date = (simple.index("time"), simple.index("date")) if in_two else (0, 0)

    def split(line: str) -> Sequence[str] | None:
        values = line.rstrip("\r\n").split(delimiter) if '"' not in line else _split(line, delimiter)
        if len(values) < width:
            return None
        if in_two and len(values[date]) <= len("2024-12-10") and not values[time].isdecimal():
            values[time] = f"{values[date]} {values[time]}"
        return values

    return LogFormat(_TITLES[delimiter], names, split, has_header=not numbered)


def _split(line: str, delimiter: str) -> list[str]:
    """Returns the values of a line; none if the line cannot be read, such as one with a value of 128 KiB."""
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter), [])
    except csv.Error:
        return []
