"""The engine of a command: --engine URL, or HEADGATE_ENGINE in the environment; --prefix for its keys.

The URL is the one that programs use, so it may ask for a fallback, a denial cache or prefetching. None of these
layers is used here: an operator wants the answer of the server itself, or an error if it does not answer.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headgate.engines.url import parse_server_url
from headgate.errors import InvalidRule

if TYPE_CHECKING:
    from headgate.engines.redis.sync_engine import RedisEngine

VARIABLE = "HEADGATE_ENGINE"
TIMEOUT_S = 5.0  # longer than a program's: a person at a prompt can wait


def add_engine(parser: argparse.ArgumentParser, *, prefix: bool = True) -> None:
    parser.add_argument("--engine", metavar="URL", help=f"redis://host:6379/0 (or {VARIABLE} in the environment)")
    if prefix:
        parser.add_argument("--prefix", default="hg", help="the prefix of the keys (default: hg)")


def url_of(args: argparse.Namespace) -> str:
    """Returns the engine's URL; empty if there is none."""
    return args.engine or os.environ.get(VARIABLE, "")


def server_of(args: argparse.Namespace, memory_error: str) -> tuple[str, float]:
    """Returns the URL of the server, and the deadline. `memory_error` says why memory:// is refused."""
    url = url_of(args)
    if not url:
        raise InvalidRule(
            f"No server is given. Write {args.called} --engine redis://host:6379/0, or set {VARIABLE}."
        )
    if url.startswith("memory://"):
        raise InvalidRule(f"memory:// is this process alone: {memory_error}.")
    return parse_server_url(url, TIMEOUT_S)


@contextmanager
def server(
    args: argparse.Namespace, memory_error: str = "nothing is remembered between two commands"
) -> Iterator[RedisEngine]:
    """Opens the server as an engine without layers, and closes it after the block."""
    server_url, deadline = server_of(args, memory_error)
    # Imported here because the other commands run without the redis package.
    from headgate.engines.redis.sync_engine import RedisEngine

    engine = RedisEngine(server_url, prefix=args.prefix, deadline=deadline)
    try:
        yield engine
    finally:
        engine.close()
