"""The output of a command: a document for programs, lines and tables for people, and an exit code.

A command returns both forms, and leaves the format to this module: JSON or text, the terminal's width, colours.
In a pipe tables have their full width, because a program may need what would be cut off.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headgate.cli.text_style import Style
from headgate.cli.text_table import TextTable, printable

DONE: Final = 0
ENGINE_UNAVAILABLE: Final = 1
INVALID: Final = 2
NEGATIVE: Final = 3
INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Output:
    """The output of a command. `document` is JSON data. A line may have a colour: (text, colour)."""

    document: Any
    lines: Sequence[str | tuple[str, str] | TextTable] = ()
    code: int = DONE

    def write(self, *, as_json: bool) -> int:
        if as_json:
            print(json.dumps(self.document, indent=2))
            return self.code
        style = Style.on(sys.stdout)
        width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None
        for item in self.lines:
            if isinstance(item, TextTable):
                for line in item.lines(width, style):
                    print(line)
            elif isinstance(item, tuple):
                for line in item[0].split("\n"):
                    print(style(printable(line), item[1]))
            else:
                print(item)
        return self.code


def warn(text: str, *, as_json: bool) -> None:
    """Prints a warning on stderr."""
    print(json.dumps({"warning": text}) if as_json else f"headgate: {text}", file=sys.stderr)
