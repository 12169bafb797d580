"""A rulebook is published to all who follow a server's, and rolled back. Flows, for both kinds of engine.

It is shown what a push changes, and pushed only if the edition that it was compared with is still in force:
somebody who was faster is not overwritten unseen. The text that is in force already is pushed again only if
something else came of it: another version of headgate tells gateways other things.

Beside the text goes the book's plate, and its scripts where gateways find them. The texts of those are stored
before any edition names them. That they are also loaded into every server spares a gateway its first round trip
and is no more than that: who may not load scripts, or has a replica down, is warned, and the book is published.
A rollback works all of that out anew: the scripts of then may be gone.

Working out a plate, and comparing books, takes a while where they are large. Who must not stand still meanwhile
gives a `work` that does it elsewhere.
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
from headgate.operations.compare_rulebooks import Comparison, compared
from headgate.rules import load
from headgate.rules.distribution.version import RulebookVersion
from headgate.rules.distribution.versions import AsyncRulebookVersions, RulebookVersions
from headgate.rules.rule import Rulebook

Work = Callable[..., Any]


class Published(NamedTuple):
    """What came of it: the edition in force, whether it is new, and what changed. Warnings are sentences."""

    edition: RulebookVersion
    new: bool
    before: int  # the number of the edition that was in force; 0: there was none
    found: Comparison
    warnings: tuple[str, ...]


class Problem(NamedTuple):
    """Something that is wrong in a rulebook. `told` is the sentence with its place."""

    line: int | None
    problem: str
    told: str


def at_once(work: Callable[..., Any], *given: Any) -> Any:
    return work(*given)


def judged(read: Callable[[], Rulebook]) -> Rulebook | list[Problem]:
    """A rulebook that can be published, or all that is wrong with it."""
    try:
        return check_split_limits(read())
    except InvalidRulebook as error:
        found = zip(error.problems, error.told, strict=True)
        return [Problem(line, sentence, told) for (line, sentence), told in found]
    except InvalidRule as error:
        return [Problem(None, str(error), str(error))]


def book_of(edition: RulebookVersion | None) -> Rulebook:
    """What an edition says; by its JSON, which needs no YAML. Where there is none, nothing is said."""
    if edition is None:
        return Rulebook()
    return load.parse(edition.book, format="json", source=f"edition {edition.version}")


def told(edition: RulebookVersion) -> dict[str, Any]:
    """An edition in a document, without its text."""
    return {
        "version": edition.version,
        "at": edition.at_us / SECOND,
        "author": edition.author,
        "note": edition.note,
        "rolled_back_to": edition.rolled_back_to,
    }


def pushing(
    engine: Any,
    editions: RulebookVersions | AsyncRulebookVersions,
    book: Rulebook,
    *,
    format: str,  # noqa: A002
    author: str,
    note: str = "",
    expected: int | None = None,
    work: Work = at_once,
) -> Flow[Published]:
    """Publish this book; if `expected` is given, only if that is the edition in force (0: none is)."""
    text = book.text or ""
    current = yield editions.current
    seen = 0 if current is None else current.version
    found = yield partial(work, _changes, current, book)
    document, warnings = yield from _document(engine, book, work)
    if expected is None:
        expected = seen
    warnings = (*book.located_warnings, *warnings)
    same = current is not None and current.text == text and (yield partial(work, _says, current, book))
    if same and expected == seen:
        return Published(current, False, seen, found, warnings)
    push = partial(editions.push, text, document, format=format, author=author, note=note, expected=expected)
    edition = yield push
    return Published(edition, True, seen, found, warnings)


def rolling_back(
    engine: Any,
    editions: RulebookVersions | AsyncRulebookVersions,
    to: int | None = None,
    *,
    author: str,
    note: str = "",
    work: Work = at_once,
) -> Flow[Published]:
    """Publish an earlier text anew: that of edition `to`, or of the one before."""
    before = yield editions.current
    warned: list[str] = []

    def anew(old: RulebookVersion) -> Flow[str]:
        book = yield partial(work, book_of, old)
        document, warnings = yield from _document(engine, book, work)
        warned.extend(warnings)
        return document

    drive: Any = run if isinstance(editions, RulebookVersions) else arun
    back: Any = editions.rollback
    edition = yield partial(back, to, author=author, note=note, anew=lambda old: drive(anew(old)))
    found = yield partial(work, _between, before, edition)
    return Published(edition, True, 0 if before is None else before.version, found, tuple(warned))


def _changes(current: RulebookVersion | None, book: Rulebook) -> Comparison:
    return compared(book_of(current), book)


def _between(old: RulebookVersion | None, new: RulebookVersion) -> Comparison:
    return compared(book_of(old), book_of(new))


def _document(engine: Any, book: Rulebook, work: Work) -> Flow[tuple[str, tuple[str, ...]]]:
    """The document of an edition that says this, once its scripts are stored; and what went wrong beside it."""
    from headgate.engines.redis import published_scripts

    made = yield partial(work, bundle.plate, book, SystemClock().now_us())
    texts = bundle.texts(made)
    yield from published_scripts.keeping(engine, texts)
    warnings: tuple[str, ...] = ()
    try:
        yield from published_scripts.loading(engine, texts)
    except EngineUnavailable as error:
        warnings = (f"The scripts could not be loaded everywhere; gateways will do so themselves. {error}",)
    return (yield partial(work, _json, made)), warnings


def _json(made: Any) -> str:
    return json.dumps(made, separators=(",", ":"))


def _says(edition: RulebookVersion, book: Rulebook) -> bool:
    """Whether the edition holds just what would be published of this book, had it been then. Not if another
    version of headgate made it: its scripts, or what it tells gateways, may be others."""
    held, made = json.loads(edition.document), bundle.plate(book, edition.at_us)
    # Warnings name the file that was pushed, which may lie elsewhere now.
    return isinstance(held, dict) and held | {"warnings": []} == made | {"warnings": []}
