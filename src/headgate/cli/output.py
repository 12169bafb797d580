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
UNANSWERED: Final = 1
INVALID: Final = 2
NO: Final = 3
INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Output:
    """`document` is made of what JSON knows. A line of `shown` may come with its colour: (text, colour)."""

    document: Any
    shown: Sequence[str | tuple[str, str] | Table] = ()
    code: int = DONE

    def tell(self, *, as_json: bool) -> int:
        if as_json:
            print(json.dumps(self.document, indent=2))
            return self.code
        ink = Style.on(sys.stdout)
        width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None
        for part in self.shown:
            if isinstance(part, Table):
                for line in part.lines(width, ink):
                    print(line)
            elif isinstance(part, tuple):
                for line in part[0].split("\n"):
                    print(ink(printable(line), part[1]))
            else:
                print(part)
        return self.code


def warn(text: str, *, as_json: bool) -> None:
    """Said beside the answer."""
    print(json.dumps({"warning": text}) if as_json else f"headgate: {text}", file=sys.stderr)
