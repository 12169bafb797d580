"""Formats tables for people: aligned columns, numbers on the right, no borders, and never wider than the terminal.

If a table is too wide, its widest column of text is truncated with an ellipsis; numbers are never truncated. Keys
are untrusted text: control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import combining, east_asian_width

from headgate.cli.text_style import Style

_GAP = "  "
MIN_COLUMN_WIDTH = 8  # to which a column of text is truncated at most


@dataclass(frozen=True)
class Cell:
    """A value with a colour."""

    value: str | int | None
    color: str


Value = str | int | None | Cell


@dataclass(frozen=True)
class TextTable:
    """Rows under titles; the columns named in `right` are aligned there. None is shown as a dash."""

    titles: Sequence[str]
    rows: Sequence[Sequence[Value]]
    right_aligned: Sequence[str] = ()

    def lines(self, width: int | None, style: Style) -> list[str]:
        texts = [[_text(cell) for cell in row] for row in self.rows]
        colors = [[cell.color if isinstance(cell, Cell) else None for cell in row] for row in self.rows]
        widths = self._widths([self.titles, *texts], width)
        header = self._line(self.titles, ["dim"] * len(self.titles), widths, style)
        return [header, *(self._line(*row, widths, style) for row in zip(texts, colors, strict=True))]

    def _widths(self, rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
        widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
        available = None if width is None else width - len(_GAP) * (len(widths) - 1)
        text_columns = [column for column, title in enumerate(self.titles) if title not in self.right_aligned]
        while available is not None and sum(widths) > available and text_columns:
            widest = max(text_columns, key=lambda column: widths[column])
            if widths[widest] <= MIN_COLUMN_WIDTH:
                break
            widths[widest] -= 1
        return widths

    def _line(self, row: Sequence[str], colors: Sequence[str | None], widths: Sequence[int], style: Style) -> str:
        cells = []
        for title, text, color, column_width in zip(self.titles, row, colors, widths, strict=True):
            cell = _truncated(text, column_width, style)
            blank = " " * (column_width - display_width(cell))
            cell = style(cell, color) if color else cell
            cells.append(blank + cell if title in self.right_aligned else cell + blank)
        return _GAP.join(cells).rstrip()


def _text(value: Value) -> str:
    if isinstance(value, Cell):
        return _text(value.value)
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else printable(value)


def printable(text: str) -> str:
    """Escapes the characters that a terminal would interpret, or could not display."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def display_width(text: str) -> int:
    """Returns the number of terminal cells that the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def _truncated(text: str, column_width: int, style: Style) -> str:
    if display_width(text) <= column_width:
        return text
    ellipsis = "…" if style.blocks else ".."
    while display_width(text) > column_width - len(ellipsis):
        text = text[:-1]
    return text + ellipsis
