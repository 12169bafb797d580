"""Declares commands: their names, options, examples, and the functions that run them.

argparse parses the command line. Its errors become sentences, and do not end the process. Every command takes
--json and shows an example in its --help: `command` sees to both.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from difflib import get_close_matches
from textwrap import fill
from typing import Any, NoReturn, TypeAlias

from headgate.algorithms.limit import SECOND
from headgate.cli.output import Output
from headgate.errors import HeadgateError, InvalidRule
from headgate.limit_syntax import parse_span

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
Run = Callable[[argparse.Namespace], Output | int]

_invalid_choice = re.compile(r"argument ([^:]*): invalid choice: '([^']*)' \(choose from (.*)\)")


class Misuse(HeadgateError):
    """Raised if the command line itself is invalid."""


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are sentences and do not end the process."""

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(**(defaults | options))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses the options of a command, and reports unknown ones: argparse would leave that to the parent
        parser, which does not know this command's options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        option = next((word.partition("=")[0] for word in unknown if word.startswith("--")), None)
        if option is not None and self._subparsers is None:
            matches = get_close_matches(option, self._option_string_actions, 1)
            hint = f"Did you mean {matches[0]}?" if matches else f"See {self.prog} --help."
            raise Misuse(f'"{option}" is not an option of {self.prog}. {hint}')
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        if match := _invalid_choice.search(message):
            word, choices = match[2], re.findall(r"[\w-]+", match[3])
            matches = get_close_matches(word, choices, 1, 0.5)
            hint = f"Did you mean {matches[0]}?" if matches else f"Known: {', '.join(choices)}."
            role = f"a command of {self.prog}" if match[1] == "COMMAND" else f"what {match[1]} may be"
            raise Misuse(f'"{word}" is not {role}. {hint}')
        raise Misuse(f"{message[:1].upper()}{message[1:]}. See {self.prog} --help.")


def command(
    commands: Commands, name: str, run: Run, about: str, *examples: str, more: str | None = None
) -> Parser:
    """Adds a command; each example is a whole line as it is typed, or the continuation of one."""
    epilog = "\n".join(["example:" if len(examples) == 1 else "examples:", *(f"  {line}" for line in examples)])
    text = f"{about[:1].upper()}{about[1:]}.{f' {more}' if more else ''}"
    parser = commands.add_parser(name, help=about, description=wrap_paragraphs(text), epilog=epilog)
    parser.add_argument("--json", action="store_true", help="print one JSON document, with times in seconds")
    parser.set_defaults(run=run, called=parser.prog)
    return parser


def group(commands: Commands, name: str, about: str, more: str | None = None) -> Commands:
    """Adds a group of commands, such as `headgate rules`."""
    text = f"{about[:1].upper()}{about[1:]}.{f' {more}' if more else ''}"
    parser = commands.add_parser(name, help=about, description=wrap_paragraphs(text))
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def wrap_paragraphs(text: str) -> str:
    """Wraps paragraphs, because argparse must not wrap the lines of the examples."""
    return "\n\n".join(fill(paragraph, 96) for paragraph in text.split("\n\n"))


def whole_number(minimum: int, maximum: int = 10**15 - 1) -> Callable[[str], int]:
    """Returns a parser of whole numbers of at least `minimum`, and at most `maximum`."""

    def read(text: str) -> int:
        if re.fullmatch(r"[0-9]+", text) and (len(text) > 15 or int(text) > maximum):
            raise argparse.ArgumentTypeError(f"at most {maximum}, not {text!r}")
        if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"a whole number of at least {minimum}, not {text!r}")
        return int(text)

    return read


def name_value(text: str) -> tuple[str, str]:
    """Parses NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"NAME=VALUE, not {text!r}")
    return name.strip(), value


def header_option(text: str) -> tuple[str, str]:
    """Parses NAME:VALUE, as in a request."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or "=" in name:
        raise argparse.ArgumentTypeError(f"NAME:VALUE, not {text!r}")
    return name.strip(), value.strip()


def duration_option(text: str) -> float:
    """Parses a length of time, such as 2h, 30m or 1.5s, to seconds."""
    try:
        return parse_span(text) / SECOND
    except InvalidRule:
        raise argparse.ArgumentTypeError(f"a length of time, such as 30s, 10m or 2h; not {text!r}") from None
