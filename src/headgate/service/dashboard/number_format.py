"""Numbers, times and spans as pages show them."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def rate_text(number: float) -> str:
    """Returns a rate in at most five characters.

    >>> rate_text(0), rate_text(3.14), rate_text(12345), rate_text(1234567)
    ('0', '3.1', '12.3k', '1.2M')
    """
    if number >= 999_950:
        return f"{number / 1e6:.1f}M"
    if number >= 9_995:
        return f"{number / 1e3:.1f}k"
    if number >= 100 or number == int(number):
        return f"{number:.0f}"
    return f"{number:.1f}"


def share_text(part: float, whole: float) -> str:
    """Returns a share as a percentage.

    >>> share_text(1, 3), share_text(1, 1000), share_text(0, 0)
    ('33 %', '0.1 %', '')
    """
    if not whole or not part:
        return ""
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


def span_text(seconds: float) -> str:
    """Returns a length of time in two units at most.

    >>> span_text(0.25), span_text(75), span_text(7500), span_text(200_000)
    ('0.3 s', '1 min 15 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for unit, size, smaller, smaller_size in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def instant_text(seconds: float) -> str:
    """Returns an instant in UTC; scripts show it in the browser's zone.

    >>> instant_text(0)
    '1970-01-01 00:00:00Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago_s(seconds: float) -> float:
    """Returns how long ago an instant was."""
    return max(0.0, time.time() - seconds)
