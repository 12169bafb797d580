"""Published rulebooks, on real servers: numbered, kept, and rolled back."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest

from headgate.engines.redis import keys
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.protocol import RedisRequest
from headgate.engines.redis.rulebook_versions import MAX_VERSIONS, AsyncRedisVersionStore, RedisVersionStore
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import InvalidRule
from headgate.rules.distribution.published_versions import AsyncRulebookVersions, RulebookVersions
from headgate.rules.distribution.rulebook_version import MAX_BYTES, RulebookVersion
from tests.engines.redis.version_harness import KEY, close_all, engines, open_versions, push_text
from tests.servers import BASE_US, Cluster, RedisServer


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    close_all()


def test_the_key_is_an_api() -> None:
    assert keys.rules_key("hg") == KEY.encode()
    assert keys.rules_key("shop") == b"shop2:rules"


def test_a_version_is_what_was_pushed(driven_server: RedisServer) -> None:
    versions = open_versions(driven_server.url)
    assert (versions.version(), versions.current(), versions.get(1), versions.history()) == (0, None, None, [])
    one = push_text(versions, "one")
    assert one == RulebookVersion(
        version=1,
        at_us=one.at_us,
        author="ana",
        note="about one",
        format="yaml",
        text="# one",
        document='{"name": "one"}',
    )
    assert 0 <= one.at_us - BASE_US < 60_000_000
    driven_server.clock.advance_us(7_000_000)
    two = push_text(versions, "two Ω\n\0\U0001f512", note="")
    assert (two.version, two.at_us - one.at_us >= 7_000_000) == (2, True)
    assert (versions.version(), versions.stamp()) == (2, (2, two.at_us))
    assert (versions.current(), versions.get(1), versions.get(2), versions.get(3)) == (two, one, two, None)
    assert versions.history() == [two, one]


async def test_the_same_awaited(server: RedisServer) -> None:
    engine = AsyncRedisEngine(server.url)
    versions = AsyncRulebookVersions(AsyncRedisVersionStore(engine))
    assert (await versions.version(), await versions.current(), await versions.history()) == (0, None, [])
    one = await versions.push("# one", "{}", format="yaml", author="ana", expected=0)
    two = await versions.push("# two", "{}", format="toml", author="bo", note="more")
    with pytest.raises(InvalidRule, match="somebody else published in between"):
        await versions.push("# three", "{}", format="yaml", author="ana", expected=1)
    three = await versions.rollback(author="bo")
    assert (three.version, three.text, three.rolled_back_to) == (3, "# one", 1)
    assert await versions.history() == [three, two, one]
    assert await versions.get(2) == two
    assert (await versions.current(), await versions.stamp()) == (three, (3, three.at_us))
    await engine.close()


def test_a_cluster_keeps_them_on_one_node(cluster: Cluster) -> None:
    versions = open_versions(cluster.url)
    for n in range(3):
        push_text(versions, f"book {n}", expected=n)
    assert [version.version for version in versions.history()] == [3, 2, 1]
    assert versions.rollback(to=1, author="bo").text == "# book 0"
    assert versions.version() == 4


def test_the_first_request_goes_to_the_node_of_the_rulebook(cluster: Cluster) -> None:
    class TagRecordingEngine(RedisEngine):
        def execute(self, question: RedisRequest, *others: Any) -> Any:
            tags.append(question.tag)
            return super().execute(question, *others)

    tags: list[bytes] = []
    engines.append(TagRecordingEngine(cluster.url))
    versions = RulebookVersions(RedisVersionStore(engines[-1]))
    push_text(versions, "one")
    versions.history()
    versions.current()
    assert set(tags) == {KEY.encode()}


async def test_a_cluster_awaited(cluster: Cluster) -> None:
    engine = AsyncRedisEngine(cluster.url)
    versions = AsyncRulebookVersions(AsyncRedisVersionStore(engine))
    one = await versions.push("# one", "{}", format="yaml", author="ana")
    assert await versions.current() == one
    await engine.close()


def test_the_last_twenty_are_kept_in_one_key_that_never_expires(server: RedisServer) -> None:
    versions = open_versions(server.url)
    for n in range(1, 26):
        assert push_text(versions, f"book {n}").version == n == versions.version()
    assert [version.version for version in versions.history()] == list(range(25, 5, -1))
    assert [version.text for version in versions.history()][-1] == "# book 6"
    assert server.call("HLEN", KEY) == MAX_VERSIONS + 2
    assert server.call("KEYS", "*") == [KEY.encode()]
    assert server.call("TTL", KEY) == -1


def test_a_stored_version_is_plain_json(redis_server: RedisServer) -> None:
    push_text(open_versions(redis_server.url), "one")
    raw = redis_server.call("HGET", KEY, "1")
    assert isinstance(raw, bytes)
    stored = json.loads(raw)
    assert list(stored)[:2] == ["version", "at_us"]
    assert json.loads(stored["document"]) == {"name": "one"}


def test_prefixes_are_apart(redis_server: RedisServer) -> None:
    push_text(open_versions(redis_server.url), "one")
    assert open_versions(redis_server.url, "shop").version() == 0


def test_simultaneous_pushes_get_different_numbers(server: RedisServer) -> None:
    each = [open_versions(server.url) for _ in range(4)]
    with ThreadPoolExecutor(8) as crew:
        pushed = list(crew.map(lambda n: push_text(each[n % 4], f"book {n}"), range(MAX_VERSIONS)))
    assert sorted(version.version for version in pushed) == list(range(1, MAX_VERSIONS + 1))
    assert each[0].history() == sorted(pushed, key=lambda version: -version.version)


def test_one_of_several_pushes_that_expect_the_same_version_wins(server: RedisServer) -> None:
    each = [open_versions(server.url) for _ in range(4)]
    push_text(each[0], "first")

    def push(n: int) -> RulebookVersion | str:
        try:
            return push_text(each[n % 4], f"book {n}", expected=1)
        except InvalidRule as error:
            return str(error)

    with ThreadPoolExecutor(8) as crew:
        results = list(crew.map(push, range(12)))
    [won] = [one for one in results if isinstance(one, RulebookVersion)]
    assert won.version == 2
    assert {one for one in results if isinstance(one, str)} == {
        f"The rulebook in force is version 2, by ana ({won.note}), not 1: somebody else "
        "published in between. Compare with that version, then push again."
    }
    assert each[0].history()[0] == won
    assert len(each[0].history()) == 2


def test_a_push_that_expects_another_version_is_refused(redis_server: RedisServer) -> None:
    versions = open_versions(redis_server.url)
    with pytest.raises(InvalidRule, match="Version 4 was expected, but no rulebook is published in Redis at"):
        push_text(versions, "one", expected=4)
    assert push_text(versions, "one", expected=0).version == 1
    with pytest.raises(InvalidRule, match=r"is version 1, by ana \(about one\), not 0"):
        push_text(versions, "two", expected=0)


def test_a_rollback_is_a_new_version(redis_server: RedisServer) -> None:
    versions = open_versions(redis_server.url)
    with pytest.raises(InvalidRule, match="There is nothing to roll back: no rulebook is published"):
        versions.rollback(author="bo")
    old = [push_text(versions, f"book {n}") for n in (1, 2, 3, 4)]
    five = versions.rollback(author="bo", note="4 was wrong")
    assert (five.version, five.text, five.document) == (5, "# book 3", '{"name": "book 3"}')
    assert (five.author, five.note, five.rolled_back_to) == ("bo", "4 was wrong", 3)
    assert versions.history() == [five, *reversed(old)]
    six = versions.rollback(author="bo")  # not forth to 4
    assert (six.text, six.rolled_back_to) == ("# book 2", 2)
    seven = versions.rollback(to=5, author="bo")  # which says what 3 said
    assert (seven.text, seven.rolled_back_to) == ("# book 3", 3)
    versions.rollback(to=1, author="bo")
    with pytest.raises(InvalidRule, match="the text in force is that of the first version"):
        versions.rollback(author="bo")
    with pytest.raises(InvalidRule, match=r"Version 99 is not kept\. Kept are 1, 2, 3, 4, 5, 6, 7, 8\."):
        versions.rollback(to=99, author="bo")
    assert versions.version() == 8


def test_a_rollback_may_work_the_document_out_anew(redis_server: RedisServer) -> None:
    versions = open_versions(redis_server.url)
    one, _ = push_text(versions, "one"), push_text(versions, "two")
    three = versions.rollback(author="bo", anew=lambda old: f"anew: {old.text}")
    assert (three.text, three.document, three.rolled_back_to) == ("# one", "anew: # one", 1)
    assert versions.get(1) == one
    assert versions.current() == three

    def fails(old: RulebookVersion) -> str:
        raise InvalidRule("This cannot be worked out.")

    with pytest.raises(InvalidRule, match="cannot be worked out"):
        versions.rollback(to=2, author="bo", anew=fails)
    assert versions.version() == 3


def test_a_rollback_does_not_undo_what_it_has_not_seen(redis_server: RedisServer) -> None:
    versions = open_versions(redis_server.url)
    push_text(versions, "one")
    push_text(versions, "two")

    class RacingVersionStore(RedisVersionStore):
        def add(self, paper: str, expected: int | None = None) -> tuple[bool, int, int]:
            push_text(versions, "three")
            return super().add(paper, expected)

    with pytest.raises(InvalidRule, match=r"is version 3, by ana \(about three\), not 2"):
        RulebookVersions(RacingVersionStore(engines[0])).rollback(author="bo")
    current = versions.current()
    assert current is not None
    assert current.text == "# three"


def test_a_large_book_goes_through_and_a_larger_one_does_not(redis_server: RedisServer) -> None:
    versions = open_versions(redis_server.url)
    large = "é" * (MAX_BYTES // 2)
    versions.push(large, large, format="yaml", author="ana")
    current = versions.current()
    assert current is not None
    assert current.text == current.document == large
    with pytest.raises(InvalidRule, match="at most 4,194,304"):
        versions.push(large + "a", "{}", format="yaml", author="ana")
    assert versions.version() == 1


def test_a_number_is_never_given_twice(redis_server: RedisServer) -> None:
    """Not even after somebody has set the version back by hand."""
    versions = open_versions(redis_server.url)
    one, two = push_text(versions, "one"), push_text(versions, "two")
    redis_server.call("HSET", KEY, "version", "1")
    assert versions.current() == one
    three = push_text(versions, "three", expected=1)
    assert versions.history() == [three, two, one]
    redis_server.call("HSET", KEY, "version", "many")
    assert versions.version() == 0
    assert push_text(versions, "four").version == 4


@pytest.mark.parametrize(
    ("version", "raw", "why"),
    [
        (
            "2",
            "{",
            r"Version 2 in Redis at .* \(hg2:rules\): This is not a version of a rulebook: it is not JSON",
        ),
        ("2", "{}", "its version should be a whole number"),
        ("2", None, "Version 2 is in force, but missing in Redis at"),
        ("2", "as 1", "Version 2 in .* says that it is version 1"),
    ],
)
def test_a_corrupt_stored_version_is_reported(
    redis_server: RedisServer, version: str, raw: str | None, why: str
) -> None:
    versions = open_versions(redis_server.url)
    one = push_text(versions, "one")
    redis_server.call("HSET", KEY, "version", version)
    if raw is not None:
        redis_server.call("HSET", KEY, version, json.dumps(asdict(one)) if raw == "as 1" else raw)
    with pytest.raises(InvalidRule, match=why):
        versions.current()


async def test_async_pushes_at_once(redis_server: RedisServer) -> None:
    engine = AsyncRedisEngine(redis_server.url)
    versions = AsyncRulebookVersions(AsyncRedisVersionStore(engine))
    pushes = (versions.push(f"# {n}", "{}", format="yaml", author="ana") for n in range(10))
    pushed = await asyncio.gather(*pushes)
    assert sorted(version.version for version in pushed) == list(range(1, 11))
    assert [version.text for version in await versions.history()] == [
        version.text for version in sorted(pushed, key=lambda version: -version.version)
    ]
    await engine.close()
