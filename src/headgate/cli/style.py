"""How a terminal is written on: colours or none, blocks or plain letters."""

from __future__ import annotations

import os
from typing import NamedTuple, TextIO

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


class Style(NamedTuple):
    color: bool
    blocks: bool

    @classmethod
    def on(cls, stream: TextIO, *, color: bool = True) -> Style:
        """What the stream can show; NO_COLOR and a dumb terminal are heeded."""
        enabled = color and stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        return cls(enabled, (stream.encoding or "").lower().replace("-", "").startswith("utf8"))

    def __call__(self, text: str, color_name: str) -> str:
        return f"\x1b[{_CODES[color_name]}m{text}\x1b[0m" if self.color and text.strip() else text

    @property
    def levels(self) -> str:
        """From nothing to all."""
        return " ▁▂▃▄▅▆▇█" if self.blocks else " .:-=+*#@"

    @property
    def dot(self) -> str:
        return "·" if self.blocks else "-"
