"""The sale as a picture: what was offered, and under it, gate by gate, what went through.

Time runs from left to right. A bar is the calls of its column, on a square-root scale so that a trickle and a
burst can both be seen; all gates share one scale. Pure: a sale and a size make lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import ceil, sqrt
from textwrap import wrap
from typing import NamedTuple

from headgate.cli.flash_sale import PHASES, SECONDS, TICKS, USER_LIMIT, Gate, Sale
from headgate.cli.style import Style

NARROWEST = 50
_WIDEST = 160
_NAME = 16  # letters that the names take
_FULL = 120  # calls in a third of a second that make a full bar; what is more is not higher
_TALL = 36  # lines from which bars are two lines high and gates stand apart
_COUNTS = (("passed", 6, "green"), ("delayed", 8, "yellow"), ("refused", 8, "red"), ("most/2s", 8, "bold"))


class _Frame(NamedTuple):
    """The room there is, and how it is used."""

    width: int
    columns: int  # for time: whole ones to a second, so that an edge is an edge
    rows: int  # that a bar is high
    counts: Sequence[tuple[str, int, str]]
    ink: Style

    @property
    def words(self) -> int:
        return self.width - sum(wide for _, wide, _ in self.counts)


def picture(sale: Sale, width: int, height: int, ink: Style) -> list[str]:
    """As many lines as it takes; a terminal of 80 by 24 holds them all."""
    width = min(_WIDEST, max(NARROWEST, width))
    tall = height >= _TALL
    columns = (width - _NAME) // SECONDS * SECONDS
    counts = _COUNTS if width >= 76 else (_COUNTS[0], _COUNTS[2])
    frame = _Frame(width, columns, 2 if tall and ink.blocks else 1, counts, ink)
    lines = _head(sale, frame)
    for gate in sale.gates:
        lines += _gate(gate, sale, frame) + [""] * tall
    return [line.rstrip() for line in lines]


def summary(sale: Sale, width: int) -> list[str]:
    """What the picture does not say, in words."""
    clicks = sale.gates[0].refused_to_user
    words = (
        f"{sale.calls:,} calls of {len(sale.buyers):,} buyers, the same at each gate. Bars: square-root scale. "
        f"Each is charged to its buyer ({USER_LIMIT}) and to the item, or to neither: at the token bucket "
        f"{clicks:,} clicks ended at the buyer's own limit, at no cost to the item."
    )
    return wrap(words, min(100, max(NARROWEST, width)))


def _head(sale: Sale, frame: _Frame) -> list[str]:
    ink, width = frame.ink, frame.width
    clock, calls = f"{sale.seconds:4.1f} s of {SECONDS}", f"{sale.calls:,} calls"
    title = f"headgate {ink.dot} a flash sale, the same calls at seven gates"
    told = "over" if sale.over else f"{sale.phase.name}: {sale.phase.calls} calls a second"
    offered = _by_column(sale.offered, frame)
    most = max(phase.calls for phase in PHASES) * SECONDS / frame.columns
    bars = _bars(offered, ["cyan"] * frame.columns, most, sale, frame)
    labels = "".join(ink(f"{name:>{wide}}", how) for name, wide, how in frame.counts)
    return [
        ink(_fit(title, width - len(clock)), "bold") + clock,
        _fit(told, width - len(calls)) + calls,
        *_named("offered", bars, ink),
        " " * _NAME + ink(_axis(frame.columns), "dim"),
        " " * frame.words + labels,
    ]


def _gate(gate: Gate, sale: Sale, frame: _Frame) -> list[str]:
    passed, waited = _by_column(gate.served, frame), _by_column(gate.waited, frame)
    colours = ["yellow" if 2 * late > all_ else "green" for all_, late in zip(passed, waited, strict=True)]
    bars = _bars(passed, colours, _FULL * sqrt(3 * SECONDS / frame.columns), sale, frame)
    return [*_named(gate.name, bars, frame.ink), _counted(gate, frame)]


def _counted(gate: Gate, frame: _Frame) -> str:
    numbers = {
        "passed": gate.passed,
        "delayed": gate.delayed,
        "refused": gate.refused,
        "most/2s": gate.busiest,
    }
    words = f"  {gate.limit}: {gate.words}"
    words = _fit(words if len(words) < frame.words else f"  {gate.words}", frame.words)
    counts = [f"{numbers[name] or '-':>{wide}{',' * (numbers[name] > 0)}}" for name, wide, _ in frame.counts]
    coloured = zip(counts, frame.counts, strict=True)
    return frame.ink(words, "dim") + "".join(frame.ink(count, how) for count, (_, _, how) in coloured)


def _fit(text: str, width: int) -> str:
    """Exactly so wide, and a space at its end."""
    return f"{text[: width - 1]:<{width}}"


def _named(name: str, bars: list[str], ink: Style) -> list[str]:
    """The name stands beside the lowest line of its bars."""
    names = [""] * (len(bars) - 1) + [name]
    return [ink(f"{name:<{_NAME}}", "bold") + bar for name, bar in zip(names, bars, strict=True)]


def _by_column(ticks: list[int], frame: _Frame) -> list[int]:
    edges = [column * TICKS // frame.columns for column in range(frame.columns + 1)]
    return [sum(ticks[low:high]) for low, high in pairwise(edges)]


def _bars(values: list[int], colours: list[str], most: float, sale: Sale, frame: _Frame) -> list[str]:
    # What has not begun yet is left blank: of delayed calls it is known before when they go through.
    seen = ceil(sale.tick * frame.columns / TICKS)
    steps = len(frame.ink.levels) - 1
    highest = frame.rows * steps
    heights = [min(highest, max(1, round(sqrt(value / most) * highest))) if value else 0 for value in values]
    lines = []
    for row in reversed(range(frame.rows)):
        cells = [frame.ink.levels[max(0, min(steps, height - row * steps))] for height in heights[:seen]]
        runs = groupby(zip(cells, colours, strict=False), key=lambda pair: pair[1])
        lines.append("".join(frame.ink("".join(cell for cell, _ in run), how) for how, run in runs))
    return lines


def _axis(columns: int) -> str:
    """The seconds, at the windows' edges."""
    line = [" "] * (columns + 2)
    for second in range(0, SECONDS, 2 if columns >= 3 * SECONDS else 4):
        place = second * columns // SECONDS
        line[place : place + len(str(second))] = str(second)
    return "".join(line).rstrip()
