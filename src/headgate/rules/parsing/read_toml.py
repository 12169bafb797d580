"""Reads a TOML document as a tree with line numbers.

tomllib parses it and reports errors. It keeps no line numbers; so toml_line_numbers.py scans the text for them
before.
"""

from __future__ import annotations

import re
import tomllib

from headgate.rules.parsing import read_python_values
from headgate.rules.parsing.document_tree import Fault, Node, Position, empty_rulebook
from headgate.rules.parsing.read_python_values import NumberText, Path
from headgate.rules.parsing.toml_line_numbers import line_numbers

_long_number = re.compile("[0-9_]{4000}")
_tomllib_message = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.S)


def read(text: str) -> Node:
    """Reads a TOML text into a tree."""
    lines = line_numbers(text)
    try:
        tree = tomllib.loads(text, parse_float=NumberText)
    except (ValueError, RecursionError) as error:
        raise toml_fault(text, str(error)) from None
    if not tree:
        raise empty_rulebook()

    def locate(path: Path) -> Position:
        return Position(lines.get(path, 1))

    return read_python_values.read(tree, locate)


def toml_fault(text: str, problem: str) -> Fault:
    """Turns an error message of tomllib into a fault with its line."""
    match = _tomllib_message.fullmatch(problem)
    if not match:  # a number with more digits than Python reads
        digits = _long_number.search(text)
        line = text.count("\n", 0, digits.start()) + 1 if digits else 1
        return Fault(Position(line), "This is not TOML: a number is too long.")
    line = int(match["line"]) if match["line"] else text.count("\n") + 1
    reason = match["what"][:1].lower() + match["what"][1:]
    return Fault(Position(line), f"This is not TOML: {reason}.")
