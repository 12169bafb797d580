"""Operators' verbs on rulebooks: read, judged, published, rolled back.

A rulebook is published only where the service follows what is published: rules that come from a file are changed
in the file. Reading and comparing take a while, and are done in a thread: calls are decided meanwhile. The worker
that published looks at once; the others look every moment anyway.
"""

from __future__ import annotations

import asyncio

import msgspec

from headgate.enforcement.open_rulebook import PUSHED
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.flow import arun
from headgate.operations import compare_rulebooks, publish_rulebook
from headgate.operations.publish_rulebook import Published, book_of, judged, pushing, rolling_back
from headgate.rules import load, serialization
from headgate.rules.distribution.version import RulebookVersion
from headgate.rules.distribution.versions import AsyncRulebookVersions
from headgate.rules.rule import Rulebook
from headgate.service.admin import schema
from headgate.service.admin.audit_log import log_change
from headgate.service.admin.engine_clients import EngineClients
from headgate.service.admin.request import AdminRequest, Conflict, NotFound, UnpublishableRulebook
from headgate.service.settings import Settings

SAMPLE = "the sample"


class RuleHandlers:
    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings, lines: EngineClients) -> None:
        self._limiter, self._lines = limiter, lines
        self._source = settings.rules or SAMPLE
        # The URL of the server whose editions are followed; None: they are not.
        self._url = (
            settings.engine if settings.rules == PUSHED else settings.rules if "://" in settings.rules else None
        )

    async def rules(self, asked: AdminRequest) -> schema.Book:
        book, watch = self._limiter.rulebook, self._limiter.watch
        paper = None if watch is None else watch.paper
        if self._url is None:
            text, kind = _written(book) if paper is None else (paper.text, paper.format or "yaml")
            return schema.Book(text, kind, len(book), self._source, None, None)
        editions = self._editions()
        edition = await editions.current()
        if edition is None:
            raise Conflict(
                "No rulebook is left on the server; what was followed last is followed on. Publish one."
            )
        rules, followed = len(await asyncio.to_thread(book_of, edition)), None if paper is None else paper.version
        return schema.Book(edition.text, edition.format, rules, editions.text, _edition(edition), followed)

    async def validate(self, asked: AdminRequest) -> schema.Judged:
        book = await _judged(asked)
        old = self._limiter.rulebook
        if self._url is not None:
            old = await asyncio.to_thread(book_of, await self._editions().current())
        changes = _changes(await asyncio.to_thread(compare_rulebooks.compared, old, book))
        return schema.Judged(len(book), changes, list(book.located_warnings))

    async def publish(self, asked: AdminRequest) -> schema.Published:
        editions = self._editions()
        found = await arun(
            pushing(
                self._server(),
                editions,
                await _judged(asked),
                format=asked.format,
                author=asked.author,
                note=asked.query.get("note", ""),
                expected=asked.expected,
                work=asyncio.to_thread,
            )
        )
        return await self._done("rules published", asked, found)

    async def rollback(self, asked: AdminRequest) -> schema.Published:
        wanted, editions = asked.body, self._editions()
        flow = rolling_back(
            self._server(), editions, wanted.to, author=asked.author, note=wanted.note, work=asyncio.to_thread
        )
        return await self._done("rules rolled back", asked, await arun(flow))

    async def _done(self, what: str, asked: AdminRequest, found: Published) -> schema.Published:
        edition, new, before, changes, warnings = found
        if new:
            told = {"before": before, "after": edition.version, "to": edition.rolled_back_to, "note": edition.note}
            log_change(what, asked.author, asked.remote, **told)
            if self._limiter.watch is not None:
                await asyncio.to_thread(self._limiter.watch.look)
        return schema.Published(new, before or None, _edition(edition), _changes(changes), list(warnings))

    async def history(self, asked: AdminRequest) -> schema.History:
        editions = self._editions()
        found, in_force = await editions.history(), await editions.version()
        return schema.History(in_force or None, [_edition(each) for each in found])

    async def edition(self, asked: AdminRequest) -> schema.KeptEdition:
        editions, version = self._editions(), int(asked.path["version"])
        found = await editions.get(version)
        if found is None:
            raise NotFound(f"Edition {version} is not kept. See /rules/history for those that are.")
        in_force = await editions.version() == version
        return schema.KeptEdition(_edition(found), in_force, found.format, found.text)

    def _server(self) -> object:
        return self._lines.to(self._followed_url())

    def _editions(self) -> AsyncRulebookVersions:
        from headgate.engines.redis.rulebook_versions import AsyncRedisVersionStore

        return AsyncRulebookVersions(AsyncRedisVersionStore(self._lines.to(self._followed_url())))

    def _followed_url(self) -> str:
        if self._url is None:
            told = "a sample" if self._source == SAMPLE else f"{self._source}: change that file"
            raise Conflict(
                f"The rules of this service are {told}. To publish rules from here, push them to a Redis once "
                "(headgate rules push), and start the service with that engine and --rules pushed."
            )
        return self._url


async def _judged(asked: AdminRequest) -> Rulebook:
    found = await asyncio.to_thread(judged, lambda: load.parse(asked.body, format=asked.format))
    if isinstance(found, list):
        raise UnpublishableRulebook(found)
    return found


def _written(book: Rulebook) -> tuple[str, str]:
    """A book that comes from a program has no text: one is made."""
    return msgspec.json.format(msgspec.json.encode(serialization.document(book)), indent=2).decode(), "json"


def _edition(edition: RulebookVersion) -> schema.Edition:
    return schema.Edition(**publish_rulebook.told(edition))


def _changes(found: compare_rulebooks.Comparison) -> schema.Changes:
    return msgspec.convert(compare_rulebooks.document(found), schema.Changes)
