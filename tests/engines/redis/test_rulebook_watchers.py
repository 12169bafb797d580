"""Watchers of a pushed rulebook on real servers: in other processes, through outages and lost data."""

import json
import logging
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import pytest

from headgate.engines.redis.rulebook_versions import RedisVersionStore
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable, InvalidRule
from headgate.rules.distribution.disk_cache import DiskCache
from headgate.rules.distribution.published_versions import RulebookVersions
from headgate.rules.distribution.source import PushedSource, RulebookText
from headgate.rules.distribution.watcher import RulebookWatcher, load_once
from tests.engines.redis.version_harness import KEY, close_all, open_versions, push_text
from tests.servers import RedisServer


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    close_all()


def load(paper: RulebookText) -> str:
    """The name of the book; one without a name is none."""
    text, _ = paper.text_and_format
    try:
        return str(json.loads(text)["name"])
    except (ValueError, KeyError, TypeError):
        raise InvalidRule(f"{paper.name} has no name.") from None


def watching(url: str, books: "SimpleQueue[tuple[str, float]]", end: Any) -> None:
    engine = RedisEngine(url)
    source = PushedSource(RulebookVersions(RedisVersionStore(engine)))
    watch = RulebookWatcher(source, load, lambda book: books.put((book, time.monotonic())))
    books.put((watch.load_first(), 0.0))
    watch.start()
    end.wait()
    watch.close()
    engine.close()


def test_a_push_is_seen_in_other_processes_within_a_second(redis_server: RedisServer) -> None:
    versions = open_versions(redis_server.url)
    push_text(versions, "one")
    spawn = multiprocessing.get_context("spawn")
    books: SimpleQueue[tuple[str, float]] = spawn.SimpleQueue()
    end = spawn.Event()
    processes = [spawn.Process(target=watching, args=(redis_server.url, books, end)) for _ in range(3)]
    for process in processes:
        process.start()
    try:
        assert [books.get() for _ in processes] == [("one", 0.0)] * 3
        for note in ("two", "one"):
            at = time.monotonic()
            if note == "two":
                push_text(versions, note)
            else:
                versions.rollback(author="bo")
            reported = [books.get() for _ in processes]
            assert [book for book, _ in reported] == [note] * 3
            assert max(seen for _, seen in reported) - at < 1
    finally:
        end.set()
        for process in processes:
            process.join(20)
    assert [process.exitcode for process in processes] == [0, 0, 0]


class Follower:
    def __init__(self, url: str, keep: DiskCache | None = None) -> None:
        self.books: list[str] = []
        self.watch = RulebookWatcher(PushedSource(open_versions(url)), load, self.books.append, disk_cache=keep)


def test_a_broken_version_put_there_by_hand_is_refused(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    versions = open_versions(server.url)
    push_text(versions, "one")
    follower = Follower(server.url)
    assert follower.watch.load_first() == "one"
    server.call("HSET", KEY, "2", "{", "version", "2")
    for _ in range(3):
        follower.watch.poll()
    assert (follower.books, follower.watch.refused_changes) == ([], 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    versions.push("# no name", "{}", format="yaml", author="ana")
    follower.watch.poll()
    assert (follower.books, follower.watch.refused_changes) == ([], 2)
    assert str(follower.watch.error).startswith("version 3 in Redis at")
    push_text(versions, "four")
    follower.watch.poll()
    assert (follower.books, follower.watch.error) == (["four"], None)


def test_a_server_without_memory_counts_anew_and_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate")
    with RedisServer() as server:
        versions = open_versions(server.url)
        push_text(versions, "one")
        follower = Follower(server.url)
        assert follower.watch.load_first() == "one"
        server.stop()
        for _ in range(2):
            follower.watch.poll()
        server.start()
        for _ in range(2):
            follower.watch.poll()
        assert follower.books == []
        assert [record.getMessage().split(";")[0].split(" in ")[0] for record in caplog.records] == [
            "headgate: the rulebook's source is gone",
            "headgate: no rulebook is left",
            f"headgate: the rulebook's source is back: {versions.text}.",
        ]
        assert push_text(versions, "two").version == 1
        follower.watch.poll()
        assert follower.books == ["two"]
        server.restart()
        assert push_text(versions, "three").version == 1  # nobody has looked meanwhile
        follower.watch.poll()
        assert follower.books == ["two", "three"]


def test_a_start_while_the_server_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        keep = DiskCache(server.url, tmp_path / "book")
        versions = open_versions(server.url)
        push_text(versions, "one")
        assert Follower(server.url, keep).watch.load_first() == "one"
        server.kill()
        follower = Follower(server.url, keep)
        assert follower.watch.load_first() == "one"
        assert "The rulebook cached on disk is used: version 1 in Redis at" in caplog.text
        with pytest.raises(EngineUnavailable):
            load_once(PushedSource(versions), load, DiskCache(server.url, tmp_path / "none"))
        server.start()
        push_text(versions, "two")
        follower.watch.poll()
        assert follower.books == ["two"]
