"""The watch: a rulebook that lives. One thread looks at a source, and hands over what is new there.

A look is cheap: only if the source's signature has changed is anything read. A book that cannot be loaded, or that
its owner will not take, is refused: the one in force stays. A source that is gone, or is empty all of a sudden (a
server that lost its memory), changes nothing either: limits do not fall because their book is away.

A start is a first look whose answer is needed. If there is none, the last good book kept on disk stands in, and
the log says so; without that the failure goes up.

Laws (tests/rules/distribution/test_watcher.py, test_watch_thread.py; on real servers
tests/engines/redis/test_rulebook_watchers.py):
  - the book in force is always the last good one that was seen;
  - a change is handed over once, within a second; a paper that says the same as before is no change;
  - a broken edition is counted and told once, not at each look; `error` holds its sentence until a good one comes;
  - a source that goes is told once, and once when it is back;
  - nothing is handed over after close, and the thread ends with its owner; a forked child has one of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from threading import Event, Lock, Thread, current_thread
from typing import Any, Generic, TypeVar
from weakref import ref

from headgate.algorithms.limit import SECOND
from headgate.clock import Clock, SystemClock
from headgate.errors import EngineUnavailable, HeadgateError, InvalidRule
from headgate.rules.distribution.disk_cache import DiskCache
from headgate.rules.distribution.source import FileSource, Paper, PushedSource, Source

__all__ = ["load_once", "FileSource", "Paper", "PushedSource", "Source", "RulebookWatcher"]

Book = TypeVar("Book")

POLL_INTERVAL_S = 0.4  # seconds between two looks
_PATIENCE = 1.0  # seconds that close waits for a look to end

PUSH_ONE = "Push one: headgate rules push FILE --engine URL."

_log = logging.getLogger("headgate")
_never = object()
_SPANS = ((86_400, "days"), (3600, "hours"), (60, "minutes"))


class RulebookWatcher(Generic[Book]):
    """Looks at a source for its owner.

    load        makes a book of a paper, or raises InvalidRule
    on_change   is given each new book; what it raises refuses the book
    keep        where each good paper is kept, for a start without the source

    Call `begin` for the first book, then `start`; `forget` is for a forked child.
    """

    def __init__(
        self,
        source: Source,
        load: Callable[[Paper], Book],
        on_change: Callable[[Book], object],
        *,
        keep: DiskCache | None = None,
        interval: float = POLL_INTERVAL_S,
        clock: Clock | None = None,
    ) -> None:
        self.source = source
        self.paper: Paper | None = None  # of the book in force
        self.error: str | None = None  # why the latest one is not in force
        self.refused: int = 0
        self.away: bool = False  # whether the source is gone
        self._load, self._on_change, self._keep = load, on_change, keep
        self._interval = interval
        self._clock = clock or SystemClock()
        self._seen: Hashable = _never
        self._closed = False
        self._looking, self._starting, self._warned = Lock(), Lock(), False
        self._end: Event | None = None
        self._thread: Thread | None = None

    def begin(self) -> Book:
        """The book to start with: the source's, or the kept one."""
        signature: Hashable = _never
        empty = False
        try:
            signature = self.source.signature()
            paper = self.source.read()
            if paper is None:
                empty = True
                raise InvalidRule(f"No rulebook has been pushed to {self.source.name} yet. {PUSH_ONE}")
            book = self._load(paper)
        except (HeadgateError, OSError) as why:
            kept = self._kept(why)
            if kept is None and isinstance(why, OSError):
                raise InvalidRule(f"{self.source.name} cannot be read: {why.strerror or why}.") from why
            if kept is None:
                raise
            self.paper, book = kept
            self.away = not isinstance(why, InvalidRule)
            if not self.away:
                self._seen = signature
            if not self.away and not empty:
                self.error = str(why)
                self.refused += 1
        else:
            self._seen = signature
            self._took(paper)
        return book

    def look(self) -> None:
        """Look once, now."""
        with self._looking:
            if self._closed:
                return
            signature: Hashable = _never
            try:
                signature = self.source.signature()
                if signature != self._seen:
                    self._look_into(self.source.read())
                    self._seen = signature
            except (EngineUnavailable, OSError) as why:
                self._gone(why)
                return
            except Exception as why:
                self._refuse(why, signature)
            if self.away:
                self.away = False
                _log.warning("headgate: the rulebook's source is back: %s.", self.source.name)

    def start(self) -> bool:
        """Look every interval, unless it does so already; False if no thread can be started. Then try again."""
        try:
            with self._starting:
                if self._end is None and not self._closed:
                    end = self._end = Event()
                    owner = ref(self, lambda _: end.set())
                    args = owner, end, self._interval
                    self._thread = Thread(target=_watching, args=args, name="headgate-rules", daemon=True)
                    self._thread.start()
                    self._warned = False
        except RuntimeError as error:  # the process has as many as it may have
            self._end = self._thread = None
            if not self._warned:
                self._warned = True
                _log.warning(
                    "headgate: changes of the rulebook are not followed, because no thread could be started: %s",
                    error,
                )
            return False
        return True

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._end is not None and self._thread is not None:
            self._end.set()
            if self._thread is not current_thread():
                self._thread.join(_PATIENCE)

    def forget(self) -> None:
        """In a forked child: its parent's thread is not here, nor whoever held the lock."""
        ran = self._end is not None or self._warned
        self._looking, self._starting, self._end, self._thread = Lock(), Lock(), None, None
        if ran:
            self.start()

    def _look_into(self, paper: Paper | None) -> None:
        if paper is None:
            _log.warning("headgate: no rulebook is left in %s; the one in force stays.", self.source.name)
        elif paper == self.paper:
            self.error = None
        else:
            book = self._load(paper)
            if not self._closed:
                self._on_change(book)
                self._took(paper)
                _log.info("headgate: the rulebook is now %s.", paper.name)

    def _took(self, paper: Paper) -> None:
        self.paper, self.error = paper, None
        if self._keep is not None:
            self._keep.write(paper)

    def _refuse(self, why: Exception, signature: Hashable) -> None:
        sentence = str(why) if isinstance(why, HeadgateError) else f"{type(why).__name__}: {why}"
        if signature is _never and sentence == self.error:
            return
        self._seen, self.error = signature, sentence
        self.refused += 1
        unexpected = None if isinstance(why, HeadgateError) else why
        _log.error(
            "headgate: a new rulebook is refused, the one in force stays. %s", sentence, exc_info=unexpected
        )

    def _gone(self, why: Exception) -> None:
        if not self.away:
            self.away = True
            _log.warning("headgate: the rulebook's source is gone, the book in force stays. %s", why)

    def _kept(self, why: Exception) -> tuple[Paper, Book] | None:
        """What stands in when there is no book to start with."""
        if self._keep is None:
            return None
        kept = self._keep.read()
        if kept is None:
            return None
        try:
            book = self._load(kept.paper)
        except HeadgateError as error:
            _log.warning("headgate: the rulebook kept in %s is of no use: %s", self._keep.path, error)
            return None
        old = _span(max(0, self._clock.now_us() - kept.at_us) // SECOND)
        _log.warning("headgate: %s The book kept on disk is used: %s, %s old.", why, kept.paper.name, old)
        return kept.paper, book


def load_once(source: Source, load: Callable[[Paper], Book], keep: DiskCache | None = None) -> Book:
    """The book to start with, for one who will not watch."""
    return RulebookWatcher(source, load, lambda _: None, keep=keep).begin()


def _watching(owner: ref[RulebookWatcher[Any]], end: Event, interval: float) -> None:
    while not end.wait(interval):
        watch = owner()
        if watch is None:
            return
        watch.look()
        del watch  # while it waits, nothing holds the owner


def _span(seconds: int) -> str:
    for length, word in _SPANS:
        if seconds >= 2 * length:
            return f"{seconds // length} {word}"
    return f"{seconds} s"
