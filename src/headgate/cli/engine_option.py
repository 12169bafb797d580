"""The engine that a command speaks to: --engine URL, or HEADGATE_ENGINE in the environment; --prefix for its keys.

The URL is the one that programs use, so it may ask for a fallback, a denial cache or prefetching. None of them is
put around it here: an operator wants to know what the engine says, and that it said nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headgate.engines import url_options
from headgate.engines.url import open_engine
from headgate.errors import InvalidRule

if TYPE_CHECKING:
    from headgate.engines.redis.sync_engine import RedisEngine

VARIABLE = "HEADGATE_ENGINE"
TIMEOUT_S = 5.0  # seconds: who waits at a prompt can wait longer than a call can


def add_engine(parser: argparse.ArgumentParser, *, prefix: bool = True) -> None:
    parser.add_argument("--engine", metavar="URL", help=f"redis://host:6379/0 (or {VARIABLE} in the environment)")
    if prefix:
        parser.add_argument("--prefix", default="hg", help="what the keys begin with (hg unless given)")


def url_of(args: argparse.Namespace) -> str:
    """Which engine was named, if any."""
    return args.engine or os.environ.get(VARIABLE, "")


def server_of(args: argparse.Namespace, memory_error: str) -> tuple[str, url_options.Options]:
    """The URL of a server without our options, and those. `memory` says why it cannot be this process."""
    url = url_of(args)
    if not url:
        raise InvalidRule(f"Say where to: {args.called} --engine redis://host:6379/0, or set {VARIABLE}.")
    if url.startswith("memory://"):
        raise InvalidRule(f"memory:// is this process alone: {memory_error}.")
    server_url, options = url_options.split(url)
    open_engine(server_url).close()  # asked nothing, it opens nothing
    return server_url, options


@contextmanager
def server(
    args: argparse.Namespace, memory_error: str = "nothing is remembered between two commands"
) -> Iterator[RedisEngine]:
    """The server that was named, as an engine with nothing around it."""
    server_url, options = server_of(args, memory_error)
    # Only here is redis needed: the rest of the command line runs without it.
    from headgate.engines.redis.sync_engine import RedisEngine

    engine = RedisEngine(server_url, prefix=args.prefix, deadline=options.deadline or TIMEOUT_S)
    try:
        yield engine
    finally:
        engine.close()
