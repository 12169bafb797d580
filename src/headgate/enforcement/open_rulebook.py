"""Opens a rulebook from code, a file or a server, and watches it for changes.

    a Rulebook or a mapping      as it is
    "rules.yaml", a Path         read, and watched: a change takes effect within a second; files and folders of
                                 envoyproxy/ratelimit are read as well
    "pushed"                     the version that `headgate rules push` put on the engine's server, watched
    "redis://host:6379/0"        the same, on another server

A pushed rulebook is also cached on disk: a process that starts while the server is down follows the last good one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from headgate.enforcement.split_limits import check_split_limits
from headgate.engines.fork_reset import on_fork
from headgate.engines.url import open_version_store, parse_engine_url
from headgate.engines.url_options import EngineUrl
from headgate.errors import InvalidRule
from headgate.rules import load
from headgate.rules.distribution.disk_cache import DiskCache
from headgate.rules.distribution.envoy_descriptors import FolderSource, translate_descriptors
from headgate.rules.distribution.published_versions import RulebookVersions
from headgate.rules.distribution.watcher import FileSource, PushedSource, RulebookText, RulebookWatcher
from headgate.rules.rule import Rulebook

Rules = Rulebook | Mapping[str, Any] | str | PathLike[str]

PUSHED = "pushed"


class OpenedRulebook(NamedTuple):
    """The rulebook to begin with, its watcher if it may change, and the function that closes both."""

    book: Rulebook
    watcher: RulebookWatcher[Rulebook] | None
    close: Callable[[], None]


def open_rulebook(
    rules: Rules, engine: EngineUrl | None, prefix: str, follow: Callable[[Rulebook], object]
) -> OpenedRulebook:
    """Opens a rulebook; `follow` is called with every new one."""
    if isinstance(rules, Rulebook):
        return OpenedRulebook(rules, None, _nothing)
    if isinstance(rules, Mapping):
        return OpenedRulebook(load.from_mapping(rules), None, _nothing)
    if not isinstance(rules, str | PathLike):
        raise InvalidRule(f'Rules are a Rulebook, a mapping, the name of a file, or "pushed"; not {rules!r}.')
    name = fspath(rules)
    if name == PUSHED:
        if engine is None or engine.server is None:
            raise InvalidRule(
                'Rules are "pushed" to a server: give its URL as the engine, or in place of "pushed".'
            )
        name = engine.text
    elif "://" in name:
        engine = parse_engine_url(name)
    watch: RulebookWatcher[Rulebook]
    if engine is not None and name == engine.text:
        version_store, disconnect = open_version_store(engine, prefix)
        source = PushedSource(RulebookVersions(version_store))
        watch = RulebookWatcher(source, _load, follow, disk_cache=DiskCache(f"{name} {prefix}"))
    else:
        disconnect = _nothing
        watch = RulebookWatcher(_local_source(name), _load, follow)
    on_fork(watch.reset_after_fork)

    def close() -> None:
        watch.close()
        disconnect()

    return OpenedRulebook(watch.load_first(), watch, close)


def check_rules(rules: Rules) -> None:
    """Raises InvalidRule if a rulebook in code or in a file cannot be read. Of one on a server it knows nothing.

    >>> check_rules({"rules": [{"name": "login", "limit": "5/minute"}]})
    """
    if not isinstance(rules, str | PathLike):
        open_rulebook(rules, None, "", _ignore)
        return
    name = fspath(rules)
    if name == PUSHED or "://" in name:
        return
    try:
        _load(_local_source(name).read())
    except OSError as error:
        raise InvalidRule(f"{name} cannot be read: {error.strerror or error}.") from error


def _local_source(name: str) -> FileSource | FolderSource:
    return FolderSource(name) if Path(name).is_dir() else FileSource(name)


def _ignore(book: Rulebook) -> None:
    """Does nothing: a rulebook in code never changes."""


def _nothing() -> None:
    """Does nothing: there is nothing to close."""


def _load(content: RulebookText) -> Rulebook:
    text, kind = translate_descriptors(content).text_and_format
    book = check_split_limits(load.parse(text, format=kind or "", source=content.name))
    return book if content.version is None else replace(book, version=content.version)
