"""The --rules option: the rulebook of a command, from a file or from the engine's server."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.output import warn
from headgate.errors import InvalidRule
from headgate.operations.publish_rulebook import book_of
from headgate.rules import load
from headgate.rules.distribution.published_versions import RulebookVersions
from headgate.rules.rule import Rulebook

if TYPE_CHECKING:
    from headgate.engines.redis.sync_engine import RedisEngine


def add_rules_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rules", metavar="FILE", help="the rulebook (default: the one pushed to the engine)")


def optional_rulebook(args: argparse.Namespace, engine: RedisEngine) -> Rulebook | None:
    """Returns the rulebook of the file, or the pushed one; None if there is none."""
    if args.rules is not None:
        return load.read(args.rules)
    version = versions_of(engine).current()
    return None if version is None else book_of(version)


def print_warnings(book: Rulebook, *, as_json: bool) -> Rulebook:
    """Prints the rulebook's warnings, and returns it without them, so that they are not printed twice."""
    for warning in book.located_warnings:
        warn(warning, as_json=as_json)
    return replace(book, warnings=())


def warn_unmatched(name: str, sentence: str | None, args: argparse.Namespace) -> None:
    """Prints a sentence about rules of the rulebook `name` that applied to no call, if there is one."""
    if sentence is not None:
        warn(f"{Path(name).name}: {sentence}", as_json=args.json)


def versions_of(engine: RedisEngine) -> RulebookVersions:
    """Returns the rulebook versions on the engine's server."""
    from headgate.engines.redis.rulebook_versions import RedisVersionStore

    return RulebookVersions(RedisVersionStore(engine))


def file_text(path: Path) -> str:
    """Reads a text file; raises InvalidRule if it cannot be read."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidRule(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidRule(f"{path} is not UTF-8, from byte {error.start} on.") from None
