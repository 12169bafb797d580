"""LogSummary: what was read of a log, also as a line for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass
class LogSummary:
    """The counts of a log that was read: lines, calls, unreadable ones.

    >>> LogSummary("access.log", "combined log", lines=9, unreadable=2).line()
    'combined log, 9 lines, 0 s, 2 unreadable'
    """

    name: str
    title: str
    lines: int = 0
    calls: int = 0
    skipped: int = 0  # lines without the user's pattern
    unreadable: int = 0
    shown: list[tuple[int, str]] = field(default_factory=list)  # the first unreadable lines, with their numbers
    first_us: int | None = None
    last_us: int | None = None
    disordered: int = 0
    late: int = 0
    attributes: tuple[str, ...] = ()  # that the log has
    notes: list[str] = field(default_factory=list)

    @property
    def call_attributes(self) -> frozenset[str] | None:
        """The attributes that its calls may have; None: any, as in a decision log.

        >>> LogSummary("access.log", "combined log", attributes=("time", "request")).call_attributes >= {"path"}
        True
        """
        if not self.attributes:
            return None
        return frozenset(self.attributes) | ({"method", "path"} if "request" in self.attributes else frozenset())

    def line(self) -> str:
        """Returns the summary as one line.

        >>> LogSummary("access.log", "combined log", lines=1791, first_us=0, last_us=65_911_000_000).line()
        'combined log, 1,791 lines, 18.3 h, 0 unreadable'
        """
        span_us = 0 if self.first_us is None or self.last_us is None else self.last_us - self.first_us
        parts = [self.title, _lines(self.lines), format_span(span_us)]
        if self.skipped:
            parts.append(f"{self.skipped:,} without the pattern")
        return ", ".join([*parts, f"{self.unreadable:,} unreadable"])

    def remarks(self, window_us: int) -> Iterator[str]:
        """Yields remarks on the log, to print below its line.

        >>> list(LogSummary("access.log", "combined log", disordered=2).remarks(3_600_000_000))
        ['2 lines out of order, put in order within 60 min']
        """
        yield from (f"unreadable line {number}: {text}" for number, text in self.shown)
        if self.disordered:
            yield f"{_lines(self.disordered)} out of order, put in order within {format_span(window_us)}"
        if self.late:
            remedy = "give a larger --window, such as 24h, or sort the log"
            yield f"{_lines(self.late)} came later than that, and got the earliest time left: {remedy}"
        yield from self.notes


def format_span(span_us: int) -> str:
    """Returns a length of time in its largest unit, with one decimal.

    >>> format_span(65_911_000_000), format_span(3_000_000)
    ('18.3 h', '3 s')
    """
    seconds = span_us / 1_000_000
    for length, unit in _SPANS:
        if seconds >= 2 * length:
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s"


def escape_unprintable(text: str) -> str:
    """Returns text of a log without characters that a terminal would obey.

    >>> escape_unprintable("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text
    )


def _lines(count: int) -> str:
    return f"{count:,} line{'' if count == 1 else 's'}"
