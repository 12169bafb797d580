"""Published versions of a rulebook: how to publish, read and roll back.

A version store numbers and dates what is added to it (engines/redis/rulebook_versions.py is one; it is passed in,
so this file needs no Redis). Publishing is one atomic step there. All else only reads.

A rollback publishes an old text under a new number: history is never rewritten, and watchers see it like any other
change. Without a number it goes back to the version before the one that published the current text first: after 4
was rolled back to 3, another rollback leads to 2, never forward to 4.

Laws (tests/engines/redis/test_rulebook_versions.py):
  - a version has the text that was pushed, and never changes;
  - a push that expects a version is refused, with a message, once there is a newer one;
  - a rollback publishes the text of the version that it names, or is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from headgate.errors import InvalidRule
from headgate.flow import Flow, arun, run
from headgate.rules.distribution import rulebook_version as distribution_version
from headgate.rules.distribution.rulebook_version import RulebookVersion

VersionStamp = tuple[int, int]


class VersionConflict(InvalidRule):
    """The current version is not the one that the push expected."""


class VersionStore(Protocol):
    """Stores versions; its methods return at once or are awaited."""

    text: str

    @property
    def add(self) -> Callable[[str, int | None], Any]: ...
    @property
    def stamp(self) -> Callable[[], Any]: ...
    @property
    def load_version(self) -> Callable[[int], Any]: ...
    @property
    def versions(self) -> Callable[[], Any]: ...


class RulebookVersions:
    """The published rulebooks of one store."""

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self.text: str = store.text

    def push(
        self,
        text: str,
        document: str,
        *,
        format: str,  # noqa: A002
        author: str,
        note: str = "",
        expected: int | None = None,
    ) -> RulebookVersion:
        """Publishes a rulebook; with `expected`, only if that is the current version (0: there is none)."""
        draft = distribution_version.draft(text, document, format=format, author=author, note=note)
        return run(_push(self._store, draft, expected))

    def rollback(
        self,
        to: int | None = None,
        *,
        author: str,
        note: str = "",
        expected: int | None = None,
        anew: Callable[[RulebookVersion], str] | None = None,
    ) -> RulebookVersion:
        """Publishes an earlier text again: that of version `to`, or of the one before; with `expected`, only if
        that is the current version.

        `anew` compiles its document again; without it, the earlier document is published too.
        """
        return run(_rollback(self._store, to, author, note, expected, anew))

    def version(self) -> int:
        """Returns the number of the current version; 0: there is none."""
        return self.stamp()[0]

    def stamp(self) -> VersionStamp:
        """Returns the current number and its time: a server that lost its data counts from 1 again."""
        stamp: VersionStamp = self._store.stamp()
        return stamp

    def current(self) -> RulebookVersion | None:
        """Returns the current version; None if there is none."""
        return run(_current(self._store))

    def get(self, version: int) -> RulebookVersion | None:
        """Returns that version; None if it is no longer kept."""
        return run(_get(self._store, version))

    def history(self) -> list[RulebookVersion]:
        """Returns all versions that are kept, newest first."""
        return run(_history(self._store))


class AsyncRulebookVersions:
    """The published rulebooks of one store, for asyncio."""

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self.text: str = store.text

    async def push(
        self,
        text: str,
        document: str,
        *,
        format: str,  # noqa: A002
        author: str,
        note: str = "",
        expected: int | None = None,
    ) -> RulebookVersion:
        draft = distribution_version.draft(text, document, format=format, author=author, note=note)
        return await arun(_push(self._store, draft, expected))

    async def rollback(
        self,
        to: int | None = None,
        *,
        author: str,
        note: str = "",
        expected: int | None = None,
        anew: Callable[[RulebookVersion], Awaitable[str]] | None = None,
    ) -> RulebookVersion:
        return await arun(_rollback(self._store, to, author, note, expected, anew))

    async def version(self) -> int:
        return (await self.stamp())[0]

    async def stamp(self) -> VersionStamp:
        stamp: VersionStamp = await self._store.stamp()
        return stamp

    async def current(self) -> RulebookVersion | None:
        return await arun(_current(self._store))

    async def get(self, version: int) -> RulebookVersion | None:
        return await arun(_get(self._store, version))

    async def history(self) -> list[RulebookVersion]:
        return await arun(_history(self._store))


def _push(store: VersionStore, draft: str, expected: int | None) -> Flow[RulebookVersion]:
    added, version, at_us = yield partial(store.add, draft, expected)
    if added:
        return distribution_version.from_draft(draft, version, at_us)
    if not version:
        raise VersionConflict(f"Version {expected} was expected, but no rulebook is published in {store.text}.")
    newer = yield from _get(store, version)
    raise _conflict(version, newer, expected)


def _conflict(version: int, newer: RulebookVersion | None, expected: int | None) -> VersionConflict:
    published_by = f", by {newer.author}" + (f" ({newer.note})" if newer.note else "") if newer else ""
    return VersionConflict(
        f"The rulebook in force is version {version}{published_by}, not {expected}: somebody else "
        "published in between. Compare with that version, then push again."
    )


def _rollback(
    store: VersionStore,
    to: int | None,
    author: str,
    note: str,
    expected: int | None,
    anew: Callable[[RulebookVersion], Any] | None,
) -> Flow[RulebookVersion]:
    current = yield from _current(store)
    if current is None:
        raise InvalidRule(f"There is nothing to roll back: no rulebook is published in {store.text}.")
    if expected not in (None, current.version):
        raise _conflict(current.version, current, expected)
    if to is None:
        to = current.origin - 1
        if not to:
            raise InvalidRule("There is nothing to roll back to: the text in force is that of the first version.")
    earlier = yield from _get(store, to)
    if earlier is None:
        numbers = yield store.versions
        raise InvalidRule(f"Version {to} is not kept. Kept are {', '.join(map(str, reversed(numbers)))}.")
    document = earlier.document if anew is None else (yield partial(anew, earlier))
    draft = distribution_version.draft(
        earlier.text, document, format=earlier.format, author=author, note=note, rolled_back_to=earlier.origin
    )
    return (yield from _push(store, draft, current.version))


def _current(store: VersionStore) -> Flow[RulebookVersion | None]:
    last_stamp: VersionStamp | None = None
    while True:
        stamp = yield store.stamp
        if not stamp[0]:
            return None
        version = yield from _get(store, stamp[0])
        if version is not None:
            return version
        if stamp == last_stamp:  # unchanged, so newer versions did not just push it out
            raise InvalidRule(f"Version {stamp[0]} is in force, but missing in {store.text}. Push it again.")
        last_stamp = stamp


def _get(store: VersionStore, version: int) -> Flow[RulebookVersion | None]:
    raw = yield partial(store.load_version, version)
    if raw is None:
        return None
    try:
        parsed = RulebookVersion.read(raw)
    except InvalidRule as error:
        raise InvalidRule(f"Version {version} in {store.text}: {error}") from None
    if parsed.version != version:
        raise InvalidRule(f"Version {version} in {store.text} says that it is version {parsed.version}.")
    return parsed


def _history(store: VersionStore) -> Flow[list[RulebookVersion]]:
    """Reads one version at a time: twenty large books are too much for one reply."""
    history: list[RulebookVersion] = []
    for version in (yield store.versions):
        published = yield from _get(store, version)
        if published is not None:
            history.append(published)
    return history
