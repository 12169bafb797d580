"""A watched rulebook: stories of a source that changes, breaks, disappears and comes back."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.clock import ManualClock
from headgate.errors import EngineUnavailable, InvalidRule
from headgate.rules.distribution.disk_cache import DiskCache
from headgate.rules.distribution.watcher import FileSource, RulebookText, RulebookWatcher, load_once
from tests.rules.distribution.watcher_harness import FakeSource, load_text

GONE = EngineUnavailable("Redis at here gave no decision: the connection failed.")


class WatcherOwner:
    """Owns a watcher, and lists the rulebooks that it gets."""

    def __init__(self, source: FakeSource, keep: DiskCache | None = None) -> None:
        self.books: list[str] = []
        self.source = source
        self.watch: RulebookWatcher[str] = RulebookWatcher(source, load_text, self.books.append, disk_cache=keep)

    def look(self, *texts: str | None) -> list[str]:
        """Each text is put there and looked at; what is in force then."""
        for text in texts:
            self.source.put(text)
            self.watch.poll()
        return self.books


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "headgate")

    def take_lines() -> list[str]:
        messages = [record.getMessage().removeprefix("headgate: ") for record in caplog.records]
        caplog.clear()
        return messages

    return take_lines


def test_a_change_is_handed_over_once() -> None:
    owner = WatcherOwner(FakeSource("one"))
    assert owner.watch.load_first() == "<one>"
    for _ in range(5):
        owner.watch.poll()
    assert (owner.books, owner.source.reads) == ([], 1)
    assert owner.look("two", "three") == ["<two>", "<three>"]
    owner.watch.poll()
    assert owner.books == ["<two>", "<three>"]


def test_without_a_beginning_the_first_look_delivers_the_rulebook() -> None:
    owner = WatcherOwner(FakeSource("one"))
    owner.watch.poll()
    assert owner.books == ["<one>"]


def test_a_touched_file_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("one")
    books: list[str] = []
    watch = RulebookWatcher(FileSource(path), load_text, books.append)
    assert watch.load_first() == "<one>"
    path.write_text("one")
    watch.poll()
    os.utime(path)
    watch.poll()
    assert books == []
    path.write_text("two")
    watch.poll()
    assert books == ["<two>"]


def test_a_broken_rulebook_is_refused_and_logged_once(lines: Callable[[], list[str]]) -> None:
    owner = WatcherOwner(FakeSource("one"))
    owner.watch.load_first()
    owner.look("!x")
    for _ in range(5):
        owner.watch.poll()
    assert owner.books == []
    assert (owner.watch.refused_changes, owner.watch.error) == (1, "version 2:1: !x is no limit.")
    assert lines() == ["a new rulebook is refused; the current one stays in force. version 2:1: !x is no limit."]
    owner.look("!y")
    assert (owner.watch.refused_changes, owner.watch.error) == (2, "version 3:1: !y is no limit.")
    assert len(lines()) == 1
    assert owner.look("two") == ["<two>"]
    assert (owner.watch.refused_changes, owner.watch.error) == (2, None)
    assert lines() == ["the rulebook is now version 4."]


def test_a_broken_file_that_is_set_right_again_is_no_error_any_more(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("one")
    books: list[str] = []
    watch = RulebookWatcher(FileSource(path), load_text, books.append)
    watch.load_first()
    for broken in ("!x", "", " ", "\xff"):
        path.write_text(broken, encoding="latin-1")
        watch.poll()
        assert watch.error is not None
        watch.poll()
    assert watch.refused_changes == 4
    path.write_text("one")
    watch.poll()
    assert (books, watch.error) == ([], None)


def test_a_rulebook_that_the_owner_rejects_is_refused(lines: Callable[[], list[str]]) -> None:
    books: list[str] = []

    def picky(book: str) -> None:
        if book == "<two>":
            raise ZeroDivisionError("two by zero")
        books.append(book)

    source = FakeSource("one")
    watch = RulebookWatcher(source, load_text, picky)
    watch.load_first()
    source.put("two")
    watch.poll()
    watch.poll()
    assert (watch.refused_changes, watch.error) == (1, "ZeroDivisionError: two by zero")
    assert len(lines()) == 1
    source.put("three")
    watch.poll()
    assert (books, watch.error) == (["<three>"], None)


def test_a_broken_signature_is_logged_once(lines: Callable[[], list[str]]) -> None:
    owner = WatcherOwner(FakeSource("one"))
    owner.watch.load_first()
    owner.source.trouble = InvalidRule("The version is no number.")
    for _ in range(3):
        owner.watch.poll()
    assert owner.watch.refused_changes == 1
    assert len(lines()) == 1


@pytest.mark.parametrize("trouble", [GONE, FileNotFoundError(2, "No such file or directory")])
def test_a_missing_source_is_logged_once_and_once_when_it_is_back(
    lines: Callable[[], list[str]], trouble: Exception
) -> None:
    owner = WatcherOwner(FakeSource("one"))
    owner.watch.load_first()
    owner.source.trouble = trouble
    for _ in range(5):
        owner.watch.poll()
    assert owner.watch.source_unavailable
    assert lines() == [f"the rulebook's source is gone; the current rulebook stays in force. {trouble}"]
    owner.source.trouble = None
    owner.watch.poll()
    owner.watch.poll()
    assert lines() == ["the rulebook's source is back: here."]
    assert (owner.books, owner.watch.refused_changes, owner.watch.source_unavailable) == ([], 0, False)
    owner.source.trouble = trouble
    owner.watch.poll()
    owner.source.trouble = None
    assert owner.look("two") == ["<two>"]
    assert len(lines()) == 3


def test_a_rulebook_that_the_owner_cannot_take_yet_is_retried() -> None:
    books: list[str] = []
    troubles: list[Exception] = [GONE]

    def follow(book: str) -> None:
        if troubles:
            raise troubles.pop()
        books.append(book)

    watch = RulebookWatcher(FakeSource("one"), load_text, follow)
    watch.poll()
    assert (watch.source_unavailable, books) == (True, [])
    watch.poll()
    assert (watch.source_unavailable, watch.refused_changes, books) == (False, 0, ["<one>"])


def test_a_server_that_lost_its_memory_changes_nothing(lines: Callable[[], list[str]]) -> None:
    owner = WatcherOwner(FakeSource("one"))
    owner.watch.load_first()
    owner.look(None)
    for _ in range(3):
        owner.watch.poll()
    assert (owner.books, owner.watch.refused_changes, owner.watch.error) == ([], 0, None)
    assert lines() == ["no rulebook is left in here; the current one stays in force."]
    assert owner.look("two") == ["<two>"]


@given(st.lists(st.sampled_from(["one", "two", "!x", None, "gone", "look"])))
def test_the_book_in_force_is_the_last_good_one_that_was_seen(story: list[str | None]) -> None:
    owner = WatcherOwner(FakeSource("start"))
    in_force, owner.source.trouble = owner.watch.load_first(), None
    logging.disable()
    try:
        for text in story:
            owner.source.trouble = GONE if text == "gone" else None
            if text not in ("gone", "look"):
                owner.source.put(text)
            owner.watch.poll()
            there = owner.source.text
            if text != "gone" and there is not None and not there.startswith("!"):
                in_force = f"<{there}>"
            assert (owner.books or ["<start>"])[-1] == in_force
            assert owner.watch.source_unavailable is (text == "gone")
            if owner.source.trouble is None and there is not None:
                assert (owner.watch.error is not None) == there.startswith("!")
    finally:
        logging.disable(logging.NOTSET)


# Beginning


def test_a_start_without_the_source_uses_the_kept_book(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    clock = ManualClock()
    keep = DiskCache("here", tmp_path / "book", clock=clock)
    WatcherOwner(FakeSource("one"), keep).watch.load_first()
    clock.advance(3 * 3600)
    source = FakeSource("one")
    source.trouble = GONE
    books: list[str] = []
    watch = RulebookWatcher(source, load_text, books.append, disk_cache=keep, clock=clock)
    assert watch.load_first() == "<one>"
    assert lines() == [f"{GONE} The rulebook cached on disk is used: version 1, 3 hours old."]
    watch.poll()
    assert lines() == []
    source.trouble = None
    watch.poll()
    assert (books, lines()) == ([], ["the rulebook's source is back: here."])  # it says the same as the kept one
    source.put("two")
    watch.poll()
    assert books == ["<two>"]


@pytest.mark.parametrize(
    ("seconds", "message"),
    [(0, "0 s"), (119, "119 s"), (120, "2 minutes"), (86400, "24 hours"), (172800, "2 days")],
)
def test_it_says_how_old_the_kept_book_is(
    tmp_path: Path, lines: Callable[[], list[str]], seconds: int, message: str
) -> None:
    clock = ManualClock()
    keep = DiskCache("here", tmp_path / "book", clock=clock)
    keep.write(RulebookText("one", "yaml", "version 1", 1))
    clock.advance(seconds)
    RulebookWatcher(FakeSource(None), load_text, print, disk_cache=keep, clock=clock).load_first()
    assert lines()[0].endswith(f"{message} old.")


def test_every_good_book_is_kept_and_no_other(tmp_path: Path) -> None:
    keep = DiskCache("here", tmp_path / "book")
    owner = WatcherOwner(FakeSource("one"), keep)
    loaded = [owner.watch.load_first()]
    for text in ("two", "!x", None, "three", "!y"):
        owner.look(text)
        cached = keep.read()
        loaded.append("" if cached is None else cached.content.text)
    assert loaded == ["<one>", "two", "two", "two", "three", "three"]


def test_a_start_without_source_and_without_kept_book_fails(tmp_path: Path) -> None:
    source = FakeSource("one")
    source.trouble = GONE
    with pytest.raises(EngineUnavailable) as raised:
        load_once(source, load_text, DiskCache("here", tmp_path / "book"))
    assert raised.value is GONE
    with pytest.raises(EngineUnavailable):
        load_once(source, load_text)
    sentence = r"^No rulebook has been pushed to here yet\. Push one: headgate rules push FILE --engine URL\.$"
    with pytest.raises(InvalidRule, match=sentence) as refused:
        load_once(FakeSource(None), load_text, DiskCache("here", tmp_path / "book"))
    assert type(refused.value) is InvalidRule
    with pytest.raises(InvalidRule, match="!x is no limit"):
        load_once(FakeSource("!x"), load_text)
    with pytest.raises(InvalidRule, match=r"rules.yaml cannot be read: No such file or directory\."):
        load_once(FileSource(tmp_path / "rules.yaml"), load_text)


def test_a_damaged_kept_book_counts_as_none(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    keep = DiskCache("here", tmp_path / "book")
    source = FakeSource("one")
    assert load_once(source, load_text, keep) == "<one>"
    source.trouble = GONE
    assert load_once(source, load_text, keep) == "<one>"
    lines()
    keep.path.write_bytes(keep.path.read_bytes()[:-5])
    with pytest.raises(EngineUnavailable):
        load_once(source, load_text, keep)
    keep.write(RulebookText("!x", "yaml", "version 1", 1))
    with pytest.raises(EngineUnavailable):
        load_once(source, load_text, keep)
    assert [line.partition(" cannot be used: ")[2] for line in lines()] == [
        "its digest does not match.",
        "version 1:1: !x is no limit.",
    ]


def test_a_start_on_a_broken_or_forgotten_book_uses_the_kept_one(
    tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    keep = DiskCache("here", tmp_path / "book")
    load_once(FakeSource("one"), load_text, keep)
    owner = WatcherOwner(FakeSource("!x"), keep)
    assert owner.watch.load_first() == "<one>"
    owner.watch.poll()
    assert (owner.watch.refused_changes, owner.watch.error, len(lines())) == (1, "version 1:1: !x is no limit.", 1)
    owner = WatcherOwner(FakeSource(None), keep)
    assert owner.watch.load_first() == "<one>"
    owner.watch.poll()
    assert (owner.watch.refused_changes, owner.watch.error, len(lines())) == (0, None, 1)
