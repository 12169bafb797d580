"""Handlers for rulebooks: show, validate, publish, roll back.

A rulebook can be published where the service follows published versions, or where it counts in memory and has no
file: then versions end with the process. Rules that come from a file are changed in the file. Parsing and
comparing take a while, and run in a thread: calls are decided meanwhile. The worker that published looks for the
new version at once; the others poll anyway.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec

from headgate.enforcement.open_rulebook import PUSHED
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.flow import arun
from headgate.operations import compare_rulebooks, publish_rulebook
from headgate.operations.publish_rulebook import PublishResult, book_of, push, roll_back, validate_rulebook
from headgate.rules import load, serialization
from headgate.rules.distribution import rulebook_version
from headgate.rules.distribution.memory_versions import MemoryVersionStore
from headgate.rules.distribution.published_versions import AsyncRulebookVersions
from headgate.rules.distribution.rulebook_version import RulebookVersion
from headgate.rules.rule import Rulebook
from headgate.service.admin import schema
from headgate.service.admin.audit_log import ChangeLog
from headgate.service.admin.request import AdminRequest, Conflict, NotFound, UnpublishableRulebook
from headgate.service.admin.unlayered_engines import UnlayeredEngines
from headgate.service.settings import Settings

SAMPLE = "the sample"


class RuleHandlers:
    """The handlers of rulebooks and their versions."""

    def __init__(
        self, limiter: AsyncRuleLimiter, settings: Settings, clients: UnlayeredEngines, changes: ChangeLog
    ) -> None:
        self._limiter, self._clients, self._changes = limiter, clients, changes
        self._rules_source = settings.rules or SAMPLE
        # The URL of the server whose versions are followed; None: rules come from a file or are the sample.
        self._versions_url = (
            settings.engine if settings.rules == PUSHED else settings.rules if "://" in settings.rules else None
        )
        # With memory:// and no file, versions are kept in this process, and end with it.
        self._memory_versions: AsyncRulebookVersions | None = None
        if not settings.rules and not clients.is_remote:
            self._memory_versions = AsyncRulebookVersions(_first_version(limiter))

    @property
    def can_publish(self) -> bool:
        """Returns whether rulebooks can be published here: rules in a file are changed in the file."""
        return self._versions_url is not None or self._memory_versions is not None

    async def rules(self, request: AdminRequest) -> schema.RulebookInfo:
        followed = self.followed()
        if not self.can_publish:
            followed.followed = None
            return followed
        versions = self._versions()
        version = await versions.current()
        if version is None:
            raise Conflict(
                "The server has no rulebook any more; this service still follows the last one. Publish one."
            )
        return schema.RulebookInfo(
            version.text,
            version.format,
            len(await asyncio.to_thread(book_of, version)),
            versions.text,
            _version_document(version),
            followed.followed,
        )

    def followed(self) -> schema.RulebookInfo:
        """Returns the rulebook that this process follows, without asking a server."""
        book, watcher = self._limiter.rulebook, self._limiter.watcher
        followed = None if watcher is None else watcher.current_text
        text, kind = _as_json(book) if followed is None else (followed.text, followed.format or "yaml")
        version = None if followed is None else followed.version
        return schema.RulebookInfo(text, kind, len(book), self._rules_source, None, version)

    async def validate(self, request: AdminRequest) -> schema.ValidationResult:
        book = await _parse_rulebook(request)
        current = self._limiter.rulebook
        if self.can_publish:
            current = await asyncio.to_thread(book_of, await self._versions().current())
        changes = _changes_document(await asyncio.to_thread(compare_rulebooks.compare, current, book))
        return schema.ValidationResult(len(book), changes, list(book.located_warnings))

    async def publish(self, request: AdminRequest) -> schema.PublicationResult:
        versions = self._versions()
        published = await arun(
            push(
                self._server(),
                versions,
                await _parse_rulebook(request),
                format=request.format,
                author=request.author,
                note=request.query.get("note", ""),
                expected=request.expected,
                work=asyncio.to_thread,
            )
        )
        return await self._publication("rules published", request, published)

    async def rollback(self, request: AdminRequest) -> schema.PublicationResult:
        body, versions = request.body, self._versions()
        flow = roll_back(
            self._server(),
            versions,
            body.to,
            author=request.author,
            note=body.note,
            expected=request.expected,
            work=asyncio.to_thread,
        )
        return await self._publication("rules rolled back", request, await arun(flow))

    async def _publication(
        self, event: str, request: AdminRequest, published: PublishResult
    ) -> schema.PublicationResult:
        version, new, before, changes, warnings = published
        if new:
            details = {
                "before": before,
                "after": version.version,
                "to": version.rolled_back_to,
                "note": version.note,
            }
            await self._changes.record(event, request.author, request.remote, request.reason, **details)
            if self._memory_versions is not None:
                book = await asyncio.to_thread(book_of, version)
                self._limiter.replace(replace(book, text=version.text, version=version.version))
            elif self._limiter.watcher is not None:
                await asyncio.to_thread(self._limiter.watcher.poll)
        return schema.PublicationResult(
            new, before or None, _version_document(version), _changes_document(changes), list(warnings)
        )

    async def history(self, request: AdminRequest | None) -> schema.VersionHistory:
        versions = self._versions()
        stored, in_force = await versions.history(), await versions.version()
        return schema.VersionHistory(in_force or None, [_version_document(version) for version in stored])

    async def version(self, request: AdminRequest) -> schema.StoredVersion:
        versions, number = self._versions(), int(request.path["version"])
        version = await versions.get(number)
        if version is None:
            raise NotFound(f"Version {number} is not kept. See /rules/history for those that are.")
        in_force = await versions.version() == number
        return schema.StoredVersion(_version_document(version), in_force, version.format, version.text)

    def _server(self) -> object:
        """Returns the engine that gateways get their scripts from; None if versions are kept in this process."""
        if self._memory_versions is not None:
            return None
        return self._clients.client(self._require_versions_url())

    def _versions(self) -> AsyncRulebookVersions:
        if self._memory_versions is not None:
            return self._memory_versions
        from headgate.engines.redis.rulebook_versions import AsyncRedisVersionStore

        return AsyncRulebookVersions(AsyncRedisVersionStore(self._clients.client(self._require_versions_url())))

    def _require_versions_url(self) -> str:
        if self._versions_url is None:
            source = "a sample" if self._rules_source == SAMPLE else f"{self._rules_source}: change that file"
            raise Conflict(
                f"The rules of this service are {source}. To publish rules from here, push them to a Redis once "
                "(headgate rules push), and start the service with that engine and --rules pushed."
            )
        return self._versions_url


def _first_version(limiter: AsyncRuleLimiter) -> MemoryVersionStore:
    """Returns a store of versions whose first is the rulebook that the process started with."""
    store, book = MemoryVersionStore(), limiter.rulebook
    document, kind = _as_json(book)
    if book.text:
        kind = "yaml"  # JSON is YAML
    first = rulebook_version.draft(
        book.text or document, document, format=kind, author="headgate", note="at the start"
    )
    store.add_now(first)
    limiter.replace(replace(book, version=1))
    return store


async def _parse_rulebook(request: AdminRequest) -> Rulebook:
    parsed = await asyncio.to_thread(validate_rulebook, lambda: load.parse(request.body, format=request.format))
    if isinstance(parsed, list):
        raise UnpublishableRulebook(parsed)
    return parsed


def _as_json(book: Rulebook) -> tuple[str, str]:
    """Returns JSON and its format, for a rulebook that comes from a program and has no text."""
    return msgspec.json.format(msgspec.json.encode(serialization.document(book)), indent=2).decode(), "json"


def _version_document(version: RulebookVersion) -> schema.VersionInfo:
    return schema.VersionInfo(**publish_rulebook.version_document(version))


def _changes_document(comparison: compare_rulebooks.Comparison) -> schema.RulebookChanges:
    return msgspec.convert(compare_rulebooks.document(comparison), schema.RulebookChanges)
