"""Styles text for a terminal: with or without colours, in Unicode blocks or ASCII."""

from __future__ import annotations

import os
from typing import NamedTuple, TextIO

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


class Style(NamedTuple):
    """The abilities of an output stream: colours, and Unicode blocks."""

    color: bool
    blocks: bool

    @classmethod
    def on(cls, stream: TextIO, *, color: bool = True) -> Style:
        """Returns the style that the stream can show; no colours with NO_COLOR or on a dumb terminal."""
        enabled = color and stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        return cls(enabled, (stream.encoding or "").lower().replace("-", "").startswith("utf8"))

    def __call__(self, text: str, color_name: str) -> str:
        return f"\x1b[{_CODES[color_name]}m{text}\x1b[0m" if self.color and text.strip() else text

    @property
    def levels(self) -> str:
        """The characters of a bar, from empty to full."""
        return " ▁▂▃▄▅▆▇█" if self.blocks else " .:-=+*#@"

    @property
    def dot(self) -> str:
        return "·" if self.blocks else "-"
