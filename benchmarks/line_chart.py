"""Draws lines over time as an SVG file, without a library."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 860, 360, 46, 36, 110, 34
_COLORS = ("#0b6e4f", "#c0392b", "#8e6c00", "#34568b", "#7d3c98")


class Line(NamedTuple):
    """A name, and its points."""

    name: str
    points: Sequence[tuple[float, float]]


def write_chart(
    path: Path, title: str, lines: Sequence[Line], *, y_max: float, marks: Sequence[tuple[float, str]] = ()
) -> None:
    """Writes a chart of these lines; values above `y_max` are drawn at the top."""
    x_max = max(point[0] for line in lines for point in line.points)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + width * value / x_max

    def y(value: float) -> float:
        return _TOP + height * (1 - min(value, y_max) / y_max)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="13" fill="#222">{title}</text>',
    ]
    for step in range(5):
        value = y_max * step / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#555">{value:g}</text>'
        )
    for step in range(5):
        second = x_max * step / 4
        parts.append(
            f'<text x="{x(second):.1f}" y="{_HEIGHT - 12}" text-anchor="middle" fill="#555">{second:.0f} s</text>'
        )
    for at, label in marks:
        parts.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{_TOP}" y2="{_TOP + height}" stroke="#999" '
            'stroke-dasharray="4 3"/>'
        )
        parts.append(f'<text x="{x(at) + 4:.1f}" y="{_TOP + 12}" fill="#555">{label}</text>')
    for number, line in enumerate(lines):
        color = _COLORS[number % len(_COLORS)]
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line.points)
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.6" points="{points}"/>')
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 8}" y="{_TOP + 14 + 18 * number}" fill="{color}">{line.name}</text>'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>", ""]))
