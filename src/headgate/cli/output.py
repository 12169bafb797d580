"""What a command answers: a document for programs, lines and tables for people, and an exit code.

A command says both and decides nothing about paper: whether it is JSON, how wide the terminal is and whether it
has colours is known here alone. Into a pipe tables are as wide as they are, for nothing may be cut off that a
program could still want.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headgate.cli.style import Style
from headgate.cli.table import Table, printable

DONE: Final = 0
ENGINE_UNAVAILABLE: Final = 1
INVALID: Final = 2
NEGATIVE: Final = 3
INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Output:
    """`document` is made of what JSON knows. A line of `shown` may come with its colour: (text, colour)."""

    document: Any
    lines: Sequence[str | tuple[str, str] | Table] = ()
    code: int = DONE

    def write(self, *, as_json: bool) -> int:
        if as_json:
            print(json.dumps(self.document, indent=2))
            return self.code
        style = Style.on(sys.stdout)
        width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None
        for item in self.lines:
            if isinstance(item, Table):
                for line in item.lines(width, style):
                    print(line)
            elif isinstance(item, tuple):
                for line in item[0].split("\n"):
                    print(style(printable(line), item[1]))
            else:
                print(item)
        return self.code


def warn(text: str, *, as_json: bool) -> None:
    """Said beside the answer."""
    print(json.dumps({"warning": text}) if as_json else f"headgate: {text}", file=sys.stderr)
