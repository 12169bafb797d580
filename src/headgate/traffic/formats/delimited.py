"""Splits CSV and TSV. The first line names the columns, or a mapping gives their numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

from headgate.traffic.formats.field_names import TIME, map_fields
from headgate.traffic.formats.log_format import LogFormat

_TITLES = {"\t": "TSV", ",": "CSV", ";": "CSV", "|": "CSV"}


def delimited_format(sample: Sequence[str], mapping: Mapping[str, str]) -> LogFormat | None:
    """Returns the format of delimited lines; None if the first line names no time, and the mapping neither."""
    delimiter = max(_TITLES, key=sample[0].count)
    if delimiter not in sample[0]:
        return None
    names = _split(sample[0], delimiter)
    numbered = TIME in mapping and mapping[TIME].isdecimal() and mapping[TIME] not in names
    if numbered:
        width = max(len(_split(line, delimiter)) for line in sample)
        names = [f"column_{number}" for number in range(1, width + 1)]
    elif TIME not in mapping and TIME not in map_fields(names, {}):
        return None
    width = len([name for name in names if name])

    def split(line: str) -> Sequence[str] | None:
        values = line.rstrip("\r\n").split(delimiter) if '"' not in line else _split(line, delimiter)
        return values if len(values) >= width else None

    return LogFormat(_TITLES[delimiter], names, split, has_header=not numbered)


def _split(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter), [])
