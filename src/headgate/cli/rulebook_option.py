"""The rulebook that a command goes by: the file that was named, or what was pushed to its engine."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.output import warn
from headgate.errors import InvalidRule
from headgate.operations.publish_rulebook import book_of
from headgate.rules import load
from headgate.rules.distribution.versions import RulebookVersions
from headgate.rules.rule import Rulebook

if TYPE_CHECKING:
    from headgate.engines.redis.sync_engine import RedisEngine


def add_rules_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rules", metavar="FILE", help="the rulebook (unless given, the one pushed to the engine, if any)"
    )


def optional_rulebook(args: argparse.Namespace, engine: RedisEngine) -> Rulebook | None:
    """The rulebook, if there is one."""
    if args.rules is not None:
        return load.read(args.rules)
    version = versions_of(engine).current()
    return None if version is None else book_of(version)


def print_warnings(book: Rulebook, *, as_json: bool) -> Rulebook:
    """Print the book's warnings; the book without them, so that nobody says them again."""
    for warning in book.located_warnings:
        warn(warning, as_json=as_json)
    return replace(book, warnings=())


def versions_of(engine: RedisEngine) -> RulebookVersions:
    """What was pushed there."""
    from headgate.engines.redis.rulebook_versions import RedisVersionStore

    return RulebookVersions(RedisVersionStore(engine))


def file_text(path: Path) -> str:
    """A file's text, or a sentence."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidRule(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidRule(f"{path} is not UTF-8, from byte {error.start} on.") from None
