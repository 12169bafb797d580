"""Editions: the published rulebooks, and how one is published, read and rolled back.

They lie in an archive that numbers and dates what is added to it (engines/redis/rulebook_versions.py is one; it is
brought along, so this file knows no Redis). Publishing is one step there. All else reads.

Rolling back publishes an old text anew, under a new number: history is never rewritten, and who watches by number
sees it like any other change. Without a number it goes to the one before, and that is reckoned by where a text
was published first: after 4 was rolled back to 3, rolling back again leads to 2, never forth to 4.

Laws (tests/engines/redis/test_rulebook_versions.py):
  - an edition is what was pushed, and stays so;
  - a push that expects an edition is refused, with a sentence, once there is a newer one;
  - a rollback says what the edition that it names says, or is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from headgate.errors import InvalidRule
from headgate.flow import Flow, arun, run
from headgate.rules.distribution import version as distribution_version
from headgate.rules.distribution.version import RulebookVersion

VersionStamp = tuple[int, int]


class VersionConflict(InvalidRule):
    """Another edition is in force than whoever pushes expected."""


class VersionStore(Protocol):
    """Where editions lie: what is asked of it answers at once, or is awaited."""

    text: str

    @property
    def add(self) -> Callable[[str, int | None], Any]: ...
    @property
    def stamp(self) -> Callable[[], Any]: ...
    @property
    def paper(self) -> Callable[[int], Any]: ...
    @property
    def versions(self) -> Callable[[], Any]: ...


class RulebookVersions:
    """The published rulebooks of one archive."""

    def __init__(self, archive: VersionStore) -> None:
        self._archive = archive
        self.text: str = archive.text

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
        """Publish a rulebook; if `expected` is given, only if that is the edition in force (0: none is)."""
        draft = distribution_version.draft(text, document, format=format, author=author, note=note)
        return run(_push(self._archive, draft, expected))

    def rollback(
        self,
        to: int | None = None,
        *,
        author: str,
        note: str = "",
        anew: Callable[[RulebookVersion], str] | None = None,
    ) -> RulebookVersion:
        """Publish an earlier text anew: that of edition `to`, or of the one before. `anew` works its document out
        again; without it, that too is the earlier one."""
        return run(_rollback(self._archive, to, author, note, anew))

    def version(self) -> int:
        """The number of the edition in force; 0: there is none."""
        return self.stamp()[0]

    def stamp(self) -> VersionStamp:
        """The same, and when it was published: a server that lost its memory counts from 1 again."""
        stamp: VersionStamp = self._archive.stamp()
        return stamp

    def current(self) -> RulebookVersion | None:
        return run(_current(self._archive))

    def get(self, version: int) -> RulebookVersion | None:
        """That edition, if it is still kept."""
        return run(_get(self._archive, version))

    def history(self) -> list[RulebookVersion]:
        """All that are kept, newest first."""
        return run(_history(self._archive))


class AsyncRulebookVersions:
    """The same, awaited."""

    def __init__(self, archive: VersionStore) -> None:
        self._archive = archive
        self.text: str = archive.text

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
        return await arun(_push(self._archive, draft, expected))

    async def rollback(
        self,
        to: int | None = None,
        *,
        author: str,
        note: str = "",
        anew: Callable[[RulebookVersion], Awaitable[str]] | None = None,
    ) -> RulebookVersion:
        return await arun(_rollback(self._archive, to, author, note, anew))

    async def version(self) -> int:
        return (await self.stamp())[0]

    async def stamp(self) -> VersionStamp:
        stamp: VersionStamp = await self._archive.stamp()
        return stamp

    async def current(self) -> RulebookVersion | None:
        return await arun(_current(self._archive))

    async def get(self, version: int) -> RulebookVersion | None:
        return await arun(_get(self._archive, version))

    async def history(self) -> list[RulebookVersion]:
        return await arun(_history(self._archive))


def _push(archive: VersionStore, draft: str, expected: int | None) -> Flow[RulebookVersion]:
    added, version, at_us = yield partial(archive.add, draft, expected)
    if added:
        return distribution_version.from_draft(draft, version, at_us)
    if not version:
        raise VersionConflict(f"Edition {expected} was expected, but no rulebook is published in {archive.text}.")
    newer = yield from _get(archive, version)
    by = f", by {newer.author}" + (f" ({newer.note})" if newer.note else "") if newer else ""
    raise VersionConflict(
        f"The rulebook in force is edition {version}{by}, not {expected}: somebody was faster. "
        "Look at what it says, and push again."
    )


def _rollback(
    archive: VersionStore, to: int | None, author: str, note: str, anew: Callable[[RulebookVersion], Any] | None
) -> Flow[RulebookVersion]:
    current = yield from _current(archive)
    if current is None:
        raise InvalidRule(f"There is nothing to roll back: no rulebook is published in {archive.text}.")
    if to is None:
        to = current.origin - 1
        if not to:
            raise InvalidRule("There is nothing to roll back to: the text in force is that of the first edition.")
    old = yield from _get(archive, to)
    if old is None:
        kept = yield archive.versions
        raise InvalidRule(f"Edition {to} is not kept. Kept are {', '.join(map(str, reversed(kept)))}.")
    document = old.document if anew is None else (yield partial(anew, old))
    draft = distribution_version.draft(
        old.text, document, format=old.format, author=author, note=note, rolled_back_to=old.origin
    )
    return (yield from _push(archive, draft, current.version))


def _current(archive: VersionStore) -> Flow[RulebookVersion | None]:
    seen: VersionStamp | None = None
    while True:
        stamp = yield archive.stamp
        if not stamp[0]:
            return None
        found = yield from _get(archive, stamp[0])
        if found is not None:
            return found
        if stamp == seen:  # not just overtaken by twenty others
            raise InvalidRule(f"Edition {stamp[0]} is in force, but missing in {archive.text}. Push it again.")
        seen = stamp


def _get(archive: VersionStore, version: int) -> Flow[RulebookVersion | None]:
    raw = yield partial(archive.paper, version)
    if raw is None:
        return None
    try:
        found = RulebookVersion.read(raw)
    except InvalidRule as error:
        raise InvalidRule(f"Edition {version} in {archive.text}: {error}") from None
    if found.version != version:
        raise InvalidRule(f"Edition {version} in {archive.text} says that it is edition {found.version}.")
    return found


def _history(archive: VersionStore) -> Flow[list[RulebookVersion]]:
    """One by one: twenty large books are no single answer."""
    found: list[RulebookVersion] = []
    for version in (yield archive.versions):
        kept = yield from _get(archive, version)
        if kept is not None:
            found.append(kept)
    return found
