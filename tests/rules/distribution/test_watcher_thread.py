"""The watcher's thread notices changes in time, ends when it should, and keeps no object alive."""

import gc
import multiprocessing
import threading
import time
import weakref
from pathlib import Path

import pytest

from headgate.rules.distribution.watcher import FileSource, RulebookText, RulebookWatcher
from tests.rules.distribution.watcher_harness import FakeSource, eventually, load_text


def started(source: FakeSource, books: list[str], interval: float = 0.02) -> RulebookWatcher[str]:
    watch = RulebookWatcher(source, load_text, books.append, interval=interval)
    watch.load_first()
    watch.start()
    watch.start()
    return watch


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headgate-rules"]


def test_the_thread_sees_a_change_and_ends_with_close() -> None:
    books: list[str] = []
    source = FakeSource("one")
    watch = started(source, books)
    assert [thread.daemon for thread in threads()] == [True]
    source.put("two")
    eventually(lambda: books == ["<two>"])
    watch.close()
    watch.close()
    assert threads() == []
    source.put("three")
    looks = source.looks
    watch.poll()
    watch.start()
    assert (books, threads(), source.looks) == (["<two>"], [], looks)


def test_close_does_not_wait_for_the_next_look() -> None:
    watch = started(FakeSource("one"), [], interval=60)
    at = time.monotonic()
    watch.close()
    assert time.monotonic() - at < 5
    assert threads() == []


def test_a_change_to_a_file_is_seen_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("one")
    seen: list[float] = []
    watch = RulebookWatcher(FileSource(path), load_text, lambda _: seen.append(time.monotonic()))
    watch.load_first()
    watch.start()
    try:
        for n in range(3):
            time.sleep(0.15 * n)  # so that the change falls elsewhere between two looks
            at = time.monotonic()
            path.write_text(f"book {n}")
            eventually(lambda n=n: len(seen) == n + 1)  # type: ignore[misc]
            assert seen[-1] - at < 1
    finally:
        watch.close()


def test_an_owner_may_close_from_within() -> None:
    source = FakeSource("one")
    watch: RulebookWatcher[str] = RulebookWatcher(source, load_text, lambda _: watch.close(), interval=0.01)
    watch.load_first()
    watch.start()
    source.put("two")
    eventually(lambda: threads() == [])
    assert watch.error is None


def test_a_book_that_is_loaded_too_late_is_not_handed_over() -> None:
    books: list[str] = []

    def slowly(paper: RulebookText) -> str:
        watch.close()
        return load_text(paper)

    watch = RulebookWatcher(FakeSource("one"), slowly, books.append)
    watch.poll()
    assert (books, watch.current_text) == ([], None)


@pytest.mark.parametrize("interval", [60, 0.02])
def test_the_thread_keeps_nobody_alive(interval: float) -> None:
    source = FakeSource("one")
    watch = started(source, [], interval)
    gone = weakref.ref(watch)
    if interval < 1:
        eventually(lambda: source.looks > 3)
    del watch
    gc.collect()
    eventually(lambda: gone() is None)
    eventually(lambda: threads() == [])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_looks_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("one")
    books: list[str] = []
    watch = RulebookWatcher(FileSource(path), load_text, books.append, interval=0.05)
    watch.load_first()
    watch.start()
    watch._poll_lock.acquire()  # as if the fork fell into a look
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()

    def child() -> None:
        watch.reset_after_fork()
        answers.put("ready")
        eventually(lambda: books)
        answers.put(books)
        watch.close()
        answers.put(len(threads()))

    process = fork.Process(target=child)
    process.start()
    watch._poll_lock.release()
    try:
        assert answers.get() == "ready"
        path.write_text("two")
        process.join(20)
        assert process.exitcode == 0
        assert (answers.get(), answers.get()) == (["<two>"], 0)
        eventually(lambda: books == ["<two>"])
    finally:
        watch.close()


def test_forgetting_starts_nothing_that_did_not_run() -> None:
    watch = RulebookWatcher(FakeSource("one"), load_text, print)
    watch.reset_after_fork()
    assert threads() == []
