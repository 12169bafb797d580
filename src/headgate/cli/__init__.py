"""The command line. It composes what the library offers, and decides nothing of its own.

    headgate demo                 watch a flash sale: the same calls at seven gates
    headgate limit "100/s"        what a limit means, in words
    headgate lua publish          load the scripts for gateways on a server, and store their SHA1
    headgate lua list | show      the scripts

An error is one sentence on stderr. Exit codes: 0 done, 1 an engine did not answer, 2 it cannot be what was
asked for, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

import headgate
from headgate.cli import demo, limit, lua
from headgate.errors import EngineUnavailable, HeadgateError


class Misuse(HeadgateError):
    """The command line itself cannot be read."""


class _Parser(argparse.ArgumentParser):
    """argparse, whose errors are sentences and do not end the process."""

    def error(self, message: str) -> NoReturn:
        if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            word, known = found[1], re.findall(r"[\w-]+", found[2])
            near = get_close_matches(word, known, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
            raise Misuse(f'"{word}" is not a command of {self.prog}. {hint}')
        raise Misuse(f"{message[:1].upper()}{message[1:]}. See {self.prog} --help.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = _parser()
    try:
        args = parser.parse_args(argv)
        code: int = args.run(args) if args.run else _help(parser)
        sys.stdout.flush()
        return code
    except EngineUnavailable as error:
        return _fail(error, 1)
    except HeadgateError as error:
        return _fail(error, 2)
    except BrokenPipeError:
        # Whoever read us has gone, and does not want the rest. Python would flush once more and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> _Parser:
    parser = _Parser(prog="headgate", description="Decides, for every call, whether it may pass.")
    parser.add_argument("--version", action="version", version=f"headgate {headgate.__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in (demo, limit, lua):
        module.add(commands)
    return parser


def _help(parser: _Parser) -> int:
    parser.print_help()
    return 0


def _fail(error: HeadgateError, code: int) -> int:
    print(f"headgate: {error}", file=sys.stderr)
    return code
