"""Splits JSON lines: of any program, of Envoy, and of headgate's decision log.

Objects inside the object are flattened: {"request": {"uri": "/"}} has the field request_uri.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headgate.traffic.formats.log_format import LogFormat

_ENVOY_FIELDS = {"start_time", "response_code"}


def parse_object(line: str) -> dict[str, Any] | None:
    """Returns the object on a line, flattened; None if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or nested too deeply
        return None
    if not isinstance(found, dict):
        return None
    for value in found.values():
        if isinstance(value, dict):
            return _flatten(found)
    return found


def _flatten(found: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}_")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def json_format(sample: Sequence[str]) -> LogFormat | None:
    """Returns the format of JSON lines, with all fields that the sample has; None if it has none."""
    objects = [found for line in sample if (found := parse_object(line)) is not None]
    if not objects:
        return None
    names = list(dict.fromkeys(name for found in objects for name in found))
    is_envoy = set(names) >= _ENVOY_FIELDS

    def split(line: str) -> Sequence[Any] | None:
        found = parse_object(line)
        return None if found is None else [found.get(name) for name in names]

    title = "Envoy JSON log" if is_envoy else "JSON lines"
    return LogFormat(title, names, split, duration_unit_us=1_000 if is_envoy and "duration" in names else None)
