"""Finds the format of a log from its first lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.errors import InvalidLog
from headgate.traffic.formats.decision_log import is_decision_log
from headgate.traffic.formats.delimited import delimited_format
from headgate.traffic.formats.field_names import TIME, synonyms_of
from headgate.traffic.formats.format_strings import parse_format
from headgate.traffic.formats.json_lines import json_format, parse_object
from headgate.traffic.formats.line_pattern import pattern_format
from headgate.traffic.formats.log_format import TEXT_FORMATS, LogFormat

DECISION_LOG = LogFormat("decision log", (), lambda line: None)


def detect_format(
    name: str, sample: Sequence[str], mapping: Mapping[str, str], format_text: str | None, pattern: str | None
) -> LogFormat:
    """Returns the format of a log: the one that the user set, or else the one that fits the sample.

    `name` is the file, for messages.
    """
    if pattern is not None:
        return pattern_format(pattern, mapping)
    if format_text is not None:
        return parse_format(format_text)
    if parse_object(sample[0]) is not None and is_decision_log(sample):
        return DECISION_LOG
    if sample[0].lstrip().startswith("{") and (found := json_format(sample)):
        return found
    fits = [(sum(each.split(line) is not None for line in sample), each) for each in TEXT_FORMATS]
    most, best = max(fits, key=lambda fit: fit[0])
    if most * 2 >= len(sample):
        return best
    if found := delimited_format(sample, mapping):
        return found
    if most:
        return best
    if sample[0].lstrip()[:2].rstrip() in ("[", "[{"):
        raise InvalidLog(
            f"{name} is a JSON array: write one object on each line, for example by jq -c '.[]', and read that."
        )
    raise InvalidLog(
        f"{name}: no time was found. It is no access log of nginx, Apache or Envoy and no JSON; as CSV or TSV its "
        f"first line would name one of these columns: {synonyms_of(TIME)}. Give --format, --pattern, or "
        "--field time=COLUMN, a name or a number from 1."
    )
