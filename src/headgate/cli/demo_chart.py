"""Draws the flash sale as a chart: the calls that were offered, and under it, by gate, those that were allowed.

Time runs from left to right. A bar is the calls of its column, on a square-root scale so that a trickle and a
burst can both be seen; all gates share one scale. Pure functions: from a sale and a size to lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import ceil, sqrt
from textwrap import wrap
from typing import NamedTuple

from headgate.cli.flash_sale import PHASES, SECONDS, TICKS, USER_LIMIT, FlashSale, SaleGate
from headgate.cli.text_style import Style

MIN_WIDTH = 50
MAX_WIDTH = 160
NAME_WIDTH = 16  # characters for the names
FULL_BAR_CALLS = 120  # calls in a third of a second that make a full bar; more calls do not make it higher
TALL_LINES = 36  # from this height on, bars are two lines high and gates are separated by a blank line
_COUNTS = (("passed", 6, "green"), ("delayed", 8, "yellow"), ("refused", 8, "red"), ("most/2s", 8, "bold"))


class _Frame(NamedTuple):
    """The size of the chart, and its layout."""

    width: int
    columns: int  # for time: a whole number for each second, so that window edges fall between columns
    rows: int  # the height of a bar
    counts: Sequence[tuple[str, int, str]]
    style: Style

    @property
    def text_width(self) -> int:
        return self.width - sum(column_width for _, column_width, _ in self.counts)


def chart(sale: FlashSale, width: int, height: int, style: Style) -> list[str]:
    """Returns the lines of the chart; a terminal of 80 by 24 holds them all."""
    width = min(MAX_WIDTH, max(MIN_WIDTH, width))
    is_tall = height >= TALL_LINES
    columns = (width - NAME_WIDTH) // SECONDS * SECONDS
    counts = _COUNTS if width >= 76 else (_COUNTS[0], _COUNTS[2])
    frame = _Frame(width, columns, 2 if is_tall and style.blocks else 1, counts, style)
    lines = _head(sale, frame)
    for gate in sale.gates:
        lines += _gate(gate, sale, frame) + [""] * is_tall
    return [line.rstrip() for line in lines]


def summary(sale: FlashSale, width: int) -> list[str]:
    """Returns the sentences below the chart."""
    clicks = sale.gates[0].refused_to_user
    text = (
        f"{sale.calls:,} calls of {len(sale.buyers):,} buyers, the same at each gate. Bars: square-root scale. "
        f"Each is charged to its buyer ({USER_LIMIT}) and to the item, or to neither: at the token bucket "
        f"{clicks:,} clicks ended at the buyer's own limit, at no cost to the item."
    )
    return wrap(text, min(100, max(MIN_WIDTH, width)))


def _head(sale: FlashSale, frame: _Frame) -> list[str]:
    style, width = frame.style, frame.width
    clock, calls = f"{sale.seconds:4.1f} s of {SECONDS}", f"{sale.calls:,} calls"
    title = f"headgate {style.dot} a flash sale, the same calls at seven gates"
    status = "over" if sale.is_over else f"{sale.phase.name}: {sale.phase.calls} calls a second"
    offered = _by_column(sale.offered, frame)
    full_bar = max(phase.calls for phase in PHASES) * SECONDS / frame.columns
    bars = _bars(offered, ["cyan"] * frame.columns, full_bar, sale, frame)
    labels = "".join(style(f"{name:>{column_width}}", color) for name, column_width, color in frame.counts)
    return [
        style(_fit(title, width - len(clock)), "bold") + clock,
        _fit(status, width - len(calls)) + calls,
        *_named("offered", bars, style),
        " " * NAME_WIDTH + style(_axis(frame.columns), "dim"),
        " " * frame.text_width + labels,
    ]


def _gate(gate: SaleGate, sale: FlashSale, frame: _Frame) -> list[str]:
    passed, waited = _by_column(gate.served, frame), _by_column(gate.waited, frame)
    colours = ["yellow" if 2 * waiting > total else "green" for total, waiting in zip(passed, waited, strict=True)]
    bars = _bars(passed, colours, FULL_BAR_CALLS * sqrt(3 * SECONDS / frame.columns), sale, frame)
    return [*_named(gate.name, bars, frame.style), _numbers_line(gate, frame)]


def _numbers_line(gate: SaleGate, frame: _Frame) -> str:
    numbers = {
        "passed": gate.passed,
        "delayed": gate.delayed,
        "refused": gate.refused,
        "most/2s": gate.peak,
    }
    description = f"  {gate.limit}: {gate.summary}"
    description = _fit(
        description if len(description) < frame.text_width else f"  {gate.summary}", frame.text_width
    )
    counts = [
        f"{numbers[name] or '-':>{column_width}{',' * (numbers[name] > 0)}}"
        for name, column_width, _ in frame.counts
    ]
    coloured = zip(counts, frame.counts, strict=True)
    return frame.style(description, "dim") + "".join(
        frame.style(count, color) for count, (_, _, color) in coloured
    )


def _fit(text: str, width: int) -> str:
    """Cuts or pads a text to a width, with at least one space at its end."""
    return f"{text[: width - 1]:<{width}}"


def _named(name: str, bars: list[str], style: Style) -> list[str]:
    """Puts the name before the lowest line of its bars."""
    names = [""] * (len(bars) - 1) + [name]
    return [style(f"{name:<{NAME_WIDTH}}", "bold") + bar for name, bar in zip(names, bars, strict=True)]


def _by_column(ticks: list[int], frame: _Frame) -> list[int]:
    edges = [column * TICKS // frame.columns for column in range(frame.columns + 1)]
    return [sum(ticks[low:high]) for low, high in pairwise(edges)]


def _bars(values: list[int], colours: list[str], full_bar: float, sale: FlashSale, frame: _Frame) -> list[str]:
    # The future is left blank: delayed calls are already counted in the tick that will serve them.
    visible = ceil(sale.tick * frame.columns / TICKS)
    steps = len(frame.style.levels) - 1
    highest = frame.rows * steps
    heights = [min(highest, max(1, round(sqrt(value / full_bar) * highest))) if value else 0 for value in values]
    lines = []
    for row in reversed(range(frame.rows)):
        cells = [frame.style.levels[max(0, min(steps, height - row * steps))] for height in heights[:visible]]
        runs = groupby(zip(cells, colours, strict=False), key=lambda pair: pair[1])
        lines.append("".join(frame.style("".join(cell for cell, _ in run), color) for color, run in runs))
    return lines


def _axis(columns: int) -> str:
    """Returns the time axis: the seconds at the edges of the windows."""
    line = [" "] * (columns + 2)
    for second in range(0, SECONDS, 2 if columns >= 3 * SECONDS else 4):
        column = second * columns // SECONDS
        line[column : column + len(str(second))] = str(second)
    return "".join(line).rstrip()
