"""Draws charts as SVG: stacked bars over time, and lines on logarithmic scales.

Colours are classes of the page's style sheet, so that a chart follows light and dark. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 42
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
MAX_BARS = 120


class Series(NamedTuple):
    """One line or one layer of bars: its name, its colour class, and its values."""

    name: str
    color: str  # a class: passed, delayed, refused, first ... fifth; also dashed
    values: Sequence[float]


def stacked_bars(title: str, layers: Sequence[Series], x_labels: Sequence[str], at_least: float = 0) -> str:
    """Draws layers of bars on top of each other; `x_labels` are spread over the width.

    `at_least` is the least that the scale reaches up to, so that charts below each other can have the same.
    """
    layers = [layer._replace(values=merge_values(layer.values, MAX_BARS)) for layer in layers]
    totals = [sum(values) for values in zip(*(layer.values for layer in layers), strict=True)]
    highest = nice_ceiling(max([*totals, at_least]))
    width = PLOT_WIDTH / max(1, len(totals))
    parts: list[str] = []
    for index in range(len(totals)):
        below = 0.0
        for layer in layers:
            value = layer.values[index]
            if value:
                height = PLOT_HEIGHT * value / highest
                y = TOP + PLOT_HEIGHT * (1 - below / highest) - height
                parts.append(
                    f'<rect class="{layer.color}" x="{LEFT + index * width:.1f}" y="{y:.1f}" '
                    f'width="{max(width - 0.5, 0.5):.1f}" height="{height:.1f}"/>'
                )
            below += value
    ticks = [(value, TOP + PLOT_HEIGHT * (1 - value / highest)) for value in (0, highest / 2, highest)]
    return _svg(title, [*_y_axis(ticks), *parts, *_x_axis(x_labels)], layers)


def log_lines(
    title: str, lines: Sequence[Series], xs: Sequence[float], x_name: str, mark: tuple[float, float, str]
) -> str:
    """Draws lines over logarithmic scales, and marks one point with a label."""
    values = [value for line in lines for value in line.values if value > 0]
    to_x = _log_scale([*xs, mark[0]], LEFT, LEFT + PLOT_WIDTH)
    highest = max(*values, mark[1])
    to_y = _log_scale([1, highest * 1.6], TOP + PLOT_HEIGHT, TOP)  # the label needs room above
    parts = []
    for line in reversed(lines):  # the first is on top
        points = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(xs, line.values, strict=True))
        parts.append(f'<polyline class="line {line.color}" points="{points}"/>')
    x, y = to_x(mark[0]), to_y(mark[1])
    anchor = "end" if x > WIDTH * 0.65 else "start"
    parts.append(f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
    shift = -9 if anchor == "end" else 9
    parts.append(
        f'<text class="label" x="{x + shift:.1f}" y="{y - 7:.1f}" text-anchor="{anchor}">{escape(mark[2])}</text>'
    )
    steps = (1, 2, 5) if highest < 200 else (1,)
    ticks = [float(step * 10**power) for power in range(8) for step in steps if step * 10**power <= highest * 1.6]
    x_ticks = [x for x in (0.1, 1, 10, 100, 1_000, 10_000, 100_000) if min(xs) <= x <= max(xs)]
    x_parts = [
        f'<text x="{to_x(x):.1f}" y="{HEIGHT - 23}" text-anchor="middle">{format_number(x)}</text>'
        for x in x_ticks
    ]
    name = f'<text x="{LEFT + PLOT_WIDTH / 2}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_name)}</text>'
    return _svg(title, [*_y_axis((tick, to_y(tick)) for tick in ticks), *parts, *x_parts, name], lines)


def merge_values(values: Sequence[float], bars: int) -> list[float]:
    """Adds up neighbours, so that at most `bars` values are left.

    >>> merge_values([1, 2, 3, 4], 2)
    [3, 7]
    """
    step = max(1, ceil(len(values) / bars))
    return [sum(values[begin : begin + step]) for begin in range(0, len(values), step)]


def nice_ceiling(value: float) -> float:
    """Returns the next round number, whose half is round, too.

    >>> nice_ceiling(0), nice_ceiling(37), nice_ceiling(200)
    (1, 40, 200)
    """
    if value <= 1:
        return 1
    power: int = 10 ** floor(log10(value))
    return next(power * step for step in (1, 2, 3, 4, 5, 6, 8, 10) if power * step >= value)


def format_number(value: float) -> str:
    """Returns a number in few characters.

    >>> format_number(1500), format_number(0.5), format_number(2_000_000)
    ('1.5k', '0.5', '2M')
    """
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _log_scale(values: Iterable[float], begin: float, end: float) -> Callable[[float], float]:
    logs = [log10(value) for value in values if value > 0]
    low, high = min(logs), max(logs)
    span = (high - low) or 1
    return lambda value: begin + (end - begin) * (log10(max(value, 1e-9)) - low) / span


def _y_axis(ticks: Iterable[tuple[float, float]]) -> list[str]:
    parts = []
    for value, y in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + PLOT_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_number(value)}</text>')
    return parts


def _x_axis(labels: Sequence[str]) -> list[str]:
    parts = []
    for index, label in enumerate(labels):
        x = LEFT + PLOT_WIDTH * index / max(1, len(labels) - 1)
        anchor = "start" if index == 0 else "end" if index == len(labels) - 1 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="{anchor}">{escape(label)}</text>')
    return parts


def _svg(title: str, parts: Iterable[str], series: Sequence[Series]) -> str:
    legend = "".join(f'<span><i class="{each.color}"></i>{escape(each.name)}</span>' for each in series)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg><p class="legend">{legend}</p></figure>'
    )
