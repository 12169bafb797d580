"""Where a rulebook comes from: code, a file, or what was pushed to a server; and how it stays up to date.

    a Rulebook or a mapping      as it is
    "rules.yaml", a Path         read, and watched: a change is followed within a second; a file or a folder of
                                 envoyproxy/ratelimit's is understood as well
    "pushed"                     what `headgate rules push` put on the engine's own server, and watched
    "redis://host:6379/0"        the same, on another server

What was pushed is also kept on disk: a process that starts while the server is gone follows the last good one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from headgate.enforcement.split_limits import divisible
from headgate.engines.fork_reset import on_fork
from headgate.engines.url import open_archive
from headgate.errors import InvalidRule
from headgate.rules import load
from headgate.rules.distribution.disk_cache import DiskCache
from headgate.rules.distribution.envoy_descriptors import FolderSource, as_book
from headgate.rules.distribution.versions import RulebookVersions
from headgate.rules.distribution.watcher import FileSource, Paper, PushedSource, RulebookWatcher
from headgate.rules.rule import Rulebook

Rules = Rulebook | Mapping[str, Any] | str | PathLike[str]

PUSHED = "pushed"


class Opened(NamedTuple):
    """The rulebook to begin with, what watches it if it may change, and what to close in the end."""

    book: Rulebook
    watch: RulebookWatcher[Rulebook] | None
    close: Callable[[], None]


def opened(rules: Rules, engine: str | None, prefix: str, follow: Callable[[Rulebook], object]) -> Opened:
    """`follow` is told of every change."""
    if isinstance(rules, Rulebook):
        return Opened(rules, None, _nothing)
    if isinstance(rules, Mapping):
        return Opened(load.of(rules), None, _nothing)
    if not isinstance(rules, str | PathLike):
        raise InvalidRule(f'Rules are a Rulebook, a mapping, the name of a file, or "pushed"; not {rules!r}.')
    name = fspath(rules)
    if name == PUSHED:
        if engine is None or engine.startswith("memory:"):
            raise InvalidRule(
                'Rules are "pushed" to a server: give its URL as the engine, or in place of "pushed".'
            )
        name = engine
    watch: RulebookWatcher[Rulebook]
    if "://" in name:
        archive, hang_up = open_archive(name, prefix)
        source = PushedSource(RulebookVersions(archive))
        watch = RulebookWatcher(source, _loaded, follow, keep=DiskCache(f"{name} {prefix}"))
    else:
        hang_up = _nothing
        watch = RulebookWatcher(FolderSource(name) if Path(name).is_dir() else FileSource(name), _loaded, follow)
    on_fork(watch.forget)

    def close() -> None:
        watch.close()
        hang_up()

    return Opened(watch.begin(), watch, close)


def _nothing() -> None:
    """There is nothing to close."""


def _loaded(paper: Paper) -> Rulebook:
    text, kind = as_book(paper).plain
    return divisible(load.parse(text, format=kind or "", source=paper.name))
