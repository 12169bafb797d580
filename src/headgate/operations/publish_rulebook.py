"""Publishes a rulebook on a server, and rolls back to an earlier version. Flows, for both kinds of engine.

A push reports what it changes, and takes effect only if the version that it was compared with is still current: a
push of somebody else in between is not overwritten unseen. A text that is current already is pushed again only if
its bundle differs: another release of headgate may compile the rulebook to another bundle.

With the text go the bundle and the scripts, for gateways. The scripts are stored before any version names them.
They are also loaded into every server, which only saves a gateway its first round trip: if the user may not load
scripts, or a replica is down, that is a warning, and the rulebook is published. A rollback compiles the bundle
again: the scripts of that time may be gone.

Compiling a bundle, and comparing rulebooks, takes a while if they are large. A caller that must not block, such as
an event loop, passes a `work` that runs it elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from headgate.algorithms.limit import SECOND
from headgate.clock import SystemClock
from headgate.enforcement.split_limits import check_split_limits
from headgate.errors import EngineUnavailable, InvalidRule, InvalidRulebook
from headgate.flow import Flow, arun, run
from headgate.gateway import bundle
from headgate.operations.compare_rulebooks import Comparison, compare
from headgate.rules import load, serialization
from headgate.rules.distribution.published_versions import AsyncRulebookVersions, RulebookVersions
from headgate.rules.distribution.rulebook_version import RulebookVersion
from headgate.rules.rule import Rulebook

Work = Callable[..., Any]


class PublishResult(NamedTuple):
    """The result of a push: the current version, whether it is new, and what changed. Warnings are sentences."""

    version: RulebookVersion
    is_new: bool
    previous_version: int  # the number of the version before; 0: there was none
    comparison: Comparison
    warnings: tuple[str, ...]


class RulebookProblem(NamedTuple):
    """A problem in a rulebook. `message` has its file and line."""

    line: int | None
    problem: str
    message: str


def call_now(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


def validate_rulebook(read: Callable[[], Rulebook]) -> Rulebook | list[RulebookProblem]:
    """Reads a rulebook, and returns it if it can be published; otherwise all of its problems."""
    try:
        return check_split_limits(read())
    except InvalidRulebook as error:
        located = zip(error.problems, error.messages, strict=True)
        return [RulebookProblem(line, sentence, message) for (line, sentence), message in located]
    except InvalidRule as error:
        return [RulebookProblem(None, str(error), str(error))]


def book_of(version: RulebookVersion | None) -> Rulebook:
    """Parses the rulebook of a version from its JSON, which needs no YAML; without a version it is empty."""
    if version is None:
        return Rulebook()
    return load.parse(version.book, format="json", source=f"version {version.version}")


def version_document(version: RulebookVersion) -> dict[str, Any]:
    """Returns a version as a JSON document, without its text."""
    return {
        "version": version.version,
        "at": version.at_us / SECOND,
        "author": version.author,
        "note": version.note,
        "rolled_back_to": version.rolled_back_to,
    }


def push(
    engine: Any,
    versions: RulebookVersions | AsyncRulebookVersions,
    book: Rulebook,
    *,
    format: str,  # noqa: A002
    author: str,
    note: str = "",
    expected: int | None = None,
    work: Work = call_now,
) -> Flow[PublishResult]:
    """Publishes this rulebook; if `expected` is given, only if that is the current version (0: there is none)."""
    text = book.text or ""
    current = yield versions.current
    current_number = 0 if current is None else current.version
    comparison = yield partial(work, _compare_with_version, current, book)
    document, warnings = yield from _document(engine, book, work)
    if expected is None:
        expected = current_number
    warnings = (*book.located_warnings, *warnings)
    same = current is not None and current.text == text
    if same and engine is not None:
        same = yield partial(work, _is_same_version, current, book)
    if same and expected == current_number:
        return PublishResult(current, False, current_number, comparison, warnings)
    push = partial(versions.push, text, document, format=format, author=author, note=note, expected=expected)
    version = yield push
    return PublishResult(version, True, current_number, comparison, warnings)


def roll_back(
    engine: Any,
    versions: RulebookVersions | AsyncRulebookVersions,
    to: int | None = None,
    *,
    author: str,
    note: str = "",
    expected: int | None = None,
    work: Work = call_now,
) -> Flow[PublishResult]:
    """Publishes an earlier text again: that of version `to`, or of the one before; if `expected` is given, only if
    that is the current version."""
    before = yield versions.current
    all_warnings: list[str] = []

    def rebuild(old: RulebookVersion) -> Flow[str]:
        book = yield partial(work, book_of, old)
        document, warnings = yield from _document(engine, book, work)
        all_warnings.extend(warnings)
        return document

    drive: Any = run if isinstance(versions, RulebookVersions) else arun
    roll_back: Any = versions.rollback
    version = yield partial(
        roll_back, to, author=author, note=note, expected=expected, anew=lambda old: drive(rebuild(old))
    )
    comparison = yield partial(work, _compare_versions, before, version)
    return PublishResult(version, True, 0 if before is None else before.version, comparison, tuple(all_warnings))


def _compare_with_version(current: RulebookVersion | None, book: Rulebook) -> Comparison:
    return compare(book_of(current), book)


def _compare_versions(old: RulebookVersion | None, new: RulebookVersion) -> Comparison:
    return compare(book_of(old), book_of(new))


def _document(engine: Any, book: Rulebook, work: Work) -> Flow[tuple[str, tuple[str, ...]]]:
    """Compiles the bundle of a version and stores its scripts; returns the bundle as JSON, and warnings. Without
    an engine there are no gateways, so the rulebook alone is returned."""
    if engine is None:
        return (yield partial(work, _plain_json, book)), ()
    from headgate.engines.redis import published_scripts

    compiled = yield partial(work, bundle.compile_bundle, book, SystemClock().now_us())
    texts = bundle.script_texts(compiled)
    yield from published_scripts.store_texts_flow(engine, texts)
    warnings: tuple[str, ...] = ()
    try:
        yield from published_scripts.load_texts_flow(engine, texts)
    except EngineUnavailable as error:
        warnings = (f"The scripts could not be loaded everywhere; gateways will do so themselves. {error}",)
    return (yield partial(work, _json, compiled)), warnings


def _plain_json(book: Rulebook) -> str:
    return _json(serialization.document(book))


def _json(compiled: Any) -> str:
    return json.dumps(compiled, separators=(",", ":"))


def _is_same_version(version: RulebookVersion, book: Rulebook) -> bool:
    """Returns whether this rulebook would compile to the bundle that the version holds. Not if another release of
    headgate made that one: its scripts or its fields may differ.
    """
    stored, compiled = json.loads(version.document), bundle.compile_bundle(book, version.at_us)
    # Warnings name the file that was pushed, which may lie elsewhere now.
    return isinstance(stored, dict) and stored | {"warnings": []} == compiled | {"warnings": []}
