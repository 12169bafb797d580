"""The watcher: a thread that polls a source and hands over new rulebooks.

A poll is cheap: the source is read only if its signature has changed. A book that cannot be loaded, or that the
owner rejects, is refused: the current one stays. A source that is unreachable, or is suddenly empty (a server that
lost its data), changes nothing either: limits do not disappear with their source.

A start needs a book. If the source has none, the last good one in the disk cache is used, and the log says so;
without that the error is raised.

Laws (tests/rules/distribution/test_watcher.py, test_watcher_thread.py; on real servers
tests/engines/redis/test_rulebook_watchers.py):
  - the current book is always the last good one that was read;
  - a change is handed over once, within a second; a text that is the same as before is no change;
  - a broken version is counted and logged once, not at each poll; `error` holds it until a good one comes;
  - a source that becomes unreachable is logged once, and once when it is back;
  - nothing is handed over after close, and the thread ends with its owner; a forked child starts its own thread.
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
from headgate.rules.distribution.source import FileSource, PushedSource, RulebookText, Source

__all__ = ["FileSource", "PushedSource", "RulebookText", "RulebookWatcher", "Source", "load_once"]

Book = TypeVar("Book")

POLL_INTERVAL_S = 0.4  # between two polls
CLOSE_TIMEOUT_S = 1.0  # that close waits for a poll to end

PUSH_HINT = "Push one: headgate rules push FILE --engine URL."

_log = logging.getLogger("headgate")
_NO_SIGNATURE = object()
_AGE_UNITS = ((86_400, "days"), (3600, "hours"), (60, "minutes"))


class RulebookWatcher(Generic[Book]):
    """Polls a source for its owner.

    load        makes a book of a text, or raises InvalidRule
    on_change   receives each new book; if it raises, the book is refused
    disk_cache  the disk cache for good books, for a start without the source

    Call `load_first` for the first book, then `start`; `reset_after_fork` is for a forked child.
    """

    def __init__(
        self,
        source: Source,
        load: Callable[[RulebookText], Book],
        on_change: Callable[[Book], object],
        *,
        disk_cache: DiskCache | None = None,
        interval: float = POLL_INTERVAL_S,
        clock: Clock | None = None,
    ) -> None:
        self.source = source
        self.current_text: RulebookText | None = None  # the text of the current book
        self.error: str | None = None  # why the latest text was refused
        self.refused_changes: int = 0
        self.source_unavailable: bool = False  # whether the source is unreachable
        self._load, self._on_change, self._disk_cache = load, on_change, disk_cache
        self._interval = interval
        self._clock = clock or SystemClock()
        self._signature: Hashable = _NO_SIGNATURE
        self._closed = False
        self._poll_lock, self._start_lock, self._warned = Lock(), Lock(), False
        self._stop: Event | None = None
        self._thread: Thread | None = None

    def load_first(self) -> Book:
        """Returns the book to start with: the source's, or the cached one."""
        signature: Hashable = _NO_SIGNATURE
        empty = False
        try:
            signature = self.source.signature()
            content = self.source.read()
            if content is None:
                empty = True
                raise InvalidRule(f"No rulebook has been pushed to {self.source.name} yet. {PUSH_HINT}")
            book = self._load(content)
        except (HeadgateError, OSError) as error:
            cached = self._load_cached(error)
            if cached is None and isinstance(error, OSError):
                raise InvalidRule(f"{self.source.name} cannot be read: {error.strerror or error}.") from error
            if cached is None:
                raise
            self.current_text, book = cached
            self.source_unavailable = not isinstance(error, InvalidRule)
            if not self.source_unavailable:
                self._signature = signature
            if not self.source_unavailable and not empty:
                self.error = str(error)
                self.refused_changes += 1
        else:
            self._signature = signature
            self._accept(content)
        return book

    def poll(self) -> None:
        """Polls the source once, now."""
        with self._poll_lock:
            if self._closed:
                return
            signature: Hashable = _NO_SIGNATURE
            try:
                signature = self.source.signature()
                if signature != self._signature:
                    self._apply(self.source.read())
                    self._signature = signature
            except (EngineUnavailable, OSError) as error:
                self._report_unavailable(error)
                return
            except Exception as error:
                self._reject(error, signature)
            if self.source_unavailable:
                self.source_unavailable = False
                _log.warning("headgate: the rulebook's source is back: %s.", self.source.name)

    def start(self) -> bool:
        """Starts the polling thread, unless it runs; returns False if no thread can be started. Then try again."""
        try:
            with self._start_lock:
                if self._stop is None and not self._closed:
                    stop = self._stop = Event()
                    owner = ref(self, lambda _: stop.set())
                    args = owner, stop, self._interval
                    self._thread = Thread(target=_poll_loop, args=args, name="headgate-rules", daemon=True)
                    self._thread.start()
                    self._warned = False
        except RuntimeError as error:  # the process has as many threads as it may have
            self._stop = self._thread = None
            if not self._warned:
                self._warned = True
                _log.warning(
                    "headgate: changes of the rulebook are not followed, because no thread could be started: %s",
                    error,
                )
            return False
        return True

    def close(self) -> None:
        """Stops polling."""
        self._closed = True
        if self._stop is not None and self._thread is not None:
            self._stop.set()
            if self._thread is not current_thread():
                self._thread.join(CLOSE_TIMEOUT_S)

    def reset_after_fork(self) -> None:
        """Restarts polling in a forked child, where the parent's thread and its locks are of no use."""
        was_running = self._stop is not None or self._warned
        self._poll_lock, self._start_lock, self._stop, self._thread = Lock(), Lock(), None, None
        if was_running:
            self.start()

    def _apply(self, content: RulebookText | None) -> None:
        if content is None:
            _log.warning("headgate: no rulebook is left in %s; the one in force stays.", self.source.name)
        elif content == self.current_text:
            self.error = None
        else:
            book = self._load(content)
            if not self._closed:
                self._on_change(book)
                self._accept(content)
                _log.info("headgate: the rulebook is now %s.", content.name)

    def _accept(self, content: RulebookText) -> None:
        self.current_text, self.error = content, None
        if self._disk_cache is not None:
            self._disk_cache.write(content)

    def _reject(self, error: Exception, signature: Hashable) -> None:
        message = str(error) if isinstance(error, HeadgateError) else f"{type(error).__name__}: {error}"
        if signature is _NO_SIGNATURE and message == self.error:
            return
        self._signature, self.error = signature, message
        self.refused_changes += 1
        unexpected = None if isinstance(error, HeadgateError) else error
        _log.error("headgate: a new rulebook is refused, the one in force stays. %s", message, exc_info=unexpected)

    def _report_unavailable(self, error: Exception) -> None:
        if not self.source_unavailable:
            self.source_unavailable = True
            _log.warning("headgate: the rulebook's source is gone, the book in force stays. %s", error)

    def _load_cached(self, cause: Exception) -> tuple[RulebookText, Book] | None:
        """Returns the cached text and its book, for a start without the source."""
        if self._disk_cache is None:
            return None
        cached = self._disk_cache.read()
        if cached is None:
            return None
        try:
            book = self._load(cached.content)
        except HeadgateError as error:
            _log.warning("headgate: the rulebook kept in %s is of no use: %s", self._disk_cache.path, error)
            return None
        age = _format_age(max(0, self._clock.now_us() - cached.at_us) // SECOND)
        _log.warning("headgate: %s The book kept on disk is used: %s, %s old.", cause, cached.content.name, age)
        return cached.content, book


def load_once(source: Source, load: Callable[[RulebookText], Book], keep: DiskCache | None = None) -> Book:
    """Returns the book to start with, for programs that do not watch the source."""
    return RulebookWatcher(source, load, lambda _: None, disk_cache=keep).load_first()


def _poll_loop(owner: ref[RulebookWatcher[Any]], stop: Event, interval: float) -> None:
    while not stop.wait(interval):
        watcher = owner()
        if watcher is None:
            return
        watcher.poll()
        del watcher  # holds no reference to the owner while it waits


def _format_age(seconds: int) -> str:
    for length, word in _AGE_UNITS:
        if seconds >= 2 * length:
            return f"{seconds // length} {word}"
    return f"{seconds} s"
