"""ACL rights on the server: the least that suffices, and a sentence for each that is missing."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from headgate import Counts
from headgate.algorithms.decision import Charge
from headgate.cli import main
from headgate.engines.redis.counts_store import READ_RIGHTS, WRITE_RIGHTS
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.engines.url import open_engine, open_version_store, parse_engine_url
from headgate.errors import EngineUnavailable
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from headgate.rules.distribution.published_versions import RulebookVersions
from headgate.telemetry.shared_counts import SharedCounts
from tests.servers import KINDS, Cluster, RedisServer, Sentinels
from tests.servers.cluster import slot_of

# The least: EVALSHA and SCRIPT LOAD, and what the scripts themselves call, on our keys only. UNLINK is reset's.
SCRIPTS = "+evalsha +script|load +unlink"
STRINGS = "+time +get +set +del +getrange +setrange +pexpire +pttl"
SLOTS = "+zadd +zrem +zscore +zcount +zrangebyscore +zrevrange +zincrby +pexpireat"
LEAST = f"~hg2:* {SCRIPTS} {STRINGS} {SLOTS}"
# A cluster is asked who serves what, and a key that is on its way to another node is asked for there. Of a
# sentinel its own user asks one thing only.
IN_A_CLUSTER = "+cluster|slots +asking"
AT_A_SENTINEL = "+sentinel|get-master-addr-by-name"

LIMITS = [
    *("10/s", "7/s burst 9", "10/s queue 9", "10/s fixed", "9/month fixed in Asia/Shanghai"),
    *("10/s sliding", "10/s log", "10/s smooth", "10/s smooth warmup 5s"),
]


@pytest.fixture(scope="module", params=KINDS)
def guarded_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


def login(server: RedisServer, rules: str) -> str:
    """The URL of a user with exactly these rights, with a deadline that a busy machine keeps."""
    server.flush()
    server.call("ACL", "SETUSER", "clerk", "reset", "on", ">secret", *rules.split())
    return f"redis://clerk:secret@127.0.0.1:{server.port}/0?deadline=30s"


def key_of(text: str, name: str | None = None) -> bytes:
    return RequestBuilder(parse(text), name or text, "hg").key("key")


def use(limiter: Limiter) -> None:
    """Every verb of a rate."""
    limiter.peek("key")
    taken = limiter.take("key", 4)
    limiter.refund(taken, 1)
    limiter.refund(taken)
    limiter.take("key", 9)
    limiter.reserve("key").cancel()
    limiter.set_limit(limiter.peek("key").limit, "key")
    limiter.take_all([Charge("key"), Charge("other", "5/s log"), Charge("other", "5/s smooth")])
    for _ in range(30):
        limiter.take("many")
    limiter.reset("key")
    if limiter.pausable:
        limiter.take("key")
        limiter.pause("key", 0.001)
        limiter.take("key")
        limiter.reset("key")


async def use_at_once(text: str, url: str) -> None:
    """Takes that share a round trip; a beat of those who share the limit."""
    async with AsyncLimiter(text, url) as limiter:
        await asyncio.gather(*(limiter.take(f"key {n % 3}") for n in range(9)))
    engine = RedisEngine(url)
    engine.heartbeat("7")
    engine.heartbeat("7")
    engine.leave("7")
    engine.close()


def without(*commands: str) -> str:
    return " ".join(word for word in LEAST.split() if word.removeprefix("+") not in commands)


@pytest.mark.parametrize("text", LIMITS)
def test_the_least_rights_suffice(text: str, guarded_server: RedisServer) -> None:
    url = login(guarded_server, LEAST)
    for pausable in (False, True):
        with Limiter(text, url, pausable=pausable) as limiter:
            use(limiter)
    asyncio.run(use_at_once(text, url))


def test_the_least_rights_suffice_for_slots(guarded_server: RedisServer) -> None:
    with Limiter("2 slots ttl 1s", login(guarded_server, LEAST)) as limiter:
        first, second = limiter.acquire("key"), limiter.acquire("key")
        assert first.renew()
        second.release()
        limiter.peek("key")
        limiter.acquire("key")
        limiter.acquire("key", timeout=2)  # waits with a ticket until one expires
        limiter.reset("key")


@pytest.mark.parametrize("command", [word.removeprefix("+") for word in LEAST.split() if word.startswith("+")])
def test_no_right_is_too_much(command: str, guarded_server: RedisServer) -> None:
    """Whichever right is taken away, something fails, and the sentence names it.

    Where Redis does not say which command it refused a script, all that the script calls are named.
    """
    url = login(guarded_server, without(command))
    guarded_server.call("SCRIPT", "FLUSH", "SYNC")
    with pytest.raises(EngineUnavailable) as refused:
        _everything(url, guarded_server)
    sentence, _, grant = str(refused.value).partition("ACL SETUSER <user> ")
    assert "its user lacks the right to run " in sentence
    assert f"+{command}" in grant.split()


def _everything(url: str, server: RedisServer) -> None:
    for text in LIMITS:
        with Limiter(text, url) as limiter:
            use(limiter)
        asyncio.run(use_at_once(text, url))
    with Limiter("10/s", url, pausable=True) as limiter:
        use(limiter)
    with Limiter("2 slots", url) as held:
        lease = held.acquire("key")
        lease.renew()
        lease.release()
        held.acquire("key")
        held.acquire("key").release()
        held.peek("key")
        held.reset("key")
    # A clock that stepped back, which nobody can make here: the slots' leases are moved along.
    with Limiter("2 slots", url, name="stepped") as held:
        held.acquire("key")
        server.call("ZADD", key_of("2 slots", "stepped"), 9 * 10**15, "stamp")
        held.acquire("key")


@pytest.mark.parametrize("keys", ["", "~other:*", "%R~hg2:*"])
def test_keys_that_may_not_be_touched(keys: str, guarded_server: RedisServer) -> None:
    with Limiter("1/s", login(guarded_server, f"{keys} +@all")) as limiter:
        with pytest.raises(EngineUnavailable, match="its user may not touch our keys") as refused:
            limiter.take("key")
        assert "Grant them: ACL SETUSER <user> ~hg2:*" in str(refused.value)
        with pytest.raises(EngineUnavailable, match="its user may not touch our keys"):
            limiter.take_all([("a", "2/s"), ("b", "3/s log")])


def test_the_sentence_names_the_prefix_in_use(guarded_server: RedisServer) -> None:
    url = login(guarded_server, "~hg2:* +@all")
    with Limiter("1/s", url, prefix="mine") as limiter, pytest.raises(EngineUnavailable, match=r"~mine2:\*"):
        limiter.take("key")


def test_another_database_needs_select(guarded_server: RedisServer) -> None:
    url = login(guarded_server, LEAST).replace("/0?", "/1?")
    with Limiter("5/hour", url) as limiter:
        with pytest.raises(
            EngineUnavailable, match=r"lacks the right to run select .* ACL SETUSER <user> \+select"
        ):
            limiter.take("key")
        guarded_server.call("ACL", "SETUSER", "clerk", "+select")
        assert limiter.take("key").remaining == 4


def test_a_right_given_later_is_enough(guarded_server: RedisServer) -> None:
    with Limiter("5/hour", login(guarded_server, without("evalsha"))) as limiter:
        with pytest.raises(EngineUnavailable, match="lacks the right to run evalsha"):
            limiter.take("key")
        guarded_server.call("ACL", "SETUSER", "clerk", "+evalsha")
        assert limiter.take("key").remaining == 4


def test_the_documented_rights_are_the_least() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "redis.md").read_text()
    _, _, rest = page.partition("ACL SETUSER limiter on >secret ")
    documented, _, _ = rest.partition("\n\n")
    assert set(documented.replace("\\", "").split()) == set(LEAST.split())


BOOK = """
rules:
  - {name: login, limit: 5/hour, key: user, missing: deny, overrides: true}
"""
LIMITED = ("user=ann", "--rule", "login")
COMMANDS = {
    "take": LIMITED,
    "peek": LIMITED,
    "refund": LIMITED,
    "reset": LIMITED,
    "keys": (),
    "overrides set": ("login", "user=ann", "9/hour"),
    "overrides get": ("login", "user=ann"),
    "overrides unset": ("login", "user=ann"),
    "overrides list": ("login",),
    "rules push": ("BOOK", "--author", "ann"),
    "rules pull": (),
    "rules history": (),
    "rules rollback": ("--author", "ann"),
    "stats": (),
    "rules report": ("login",),
    "lua publish": (),
    "doctor": (),
}


def granted() -> dict[str, str]:
    """Returns the rights that docs/how-to/redis.md grants each command, in addition to the least."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "redis.md").read_text()
    _, _, table = page.partition("| for | grant |\n|---|---|\n")
    rows = [row.replace("\\|", "/").strip("| ").split(" | ") for row in table.partition("\n\n")[0].splitlines()]
    return {
        command: grant.strip("`").replace("/", "|") if grant.startswith("`") else ""
        for words, grant in rows
        for command in re.findall("`headgate ([a-z ]+)`", words)
    }


def test_every_command_that_needs_a_server_is_in_the_table() -> None:
    assert set(granted()) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_documented_rights_suffice_for(
    command: str, guarded_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "rules.yaml"
    book.write_text(BOOK)
    url = login(guarded_server, f"{LEAST} {granted()[command]}")
    for text in (BOOK, BOOK.replace("5/hour", "6/hour")):
        book.write_text(text)
        assert main(["rules", "push", str(book), "--author", "ann", "--engine", guarded_server.url]) == 0
    engine = open_engine(guarded_server.url)
    engine.overrides("login").set("user=ann", "7/hour")
    engine.close()
    book.write_text(BOOK)
    words = [str(book) if word == "BOOK" else word for word in COMMANDS[command]]
    needs_book = ["--rules", str(book)] if command in ("take", "peek", "refund", "reset") else []
    capsys.readouterr()
    assert main([*command.split(), *words, *needs_book, "--engine", url]) == 0, capsys.readouterr().err
    assert "lacks the right" not in capsys.readouterr().err


def test_counts_need_what_is_documented(guarded_server: RedisServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "redis.md").read_text()
    row = re.search(r"`Counts\(shared_at=\.\.\.\)` \| `([^`]+)`", page)
    assert row is not None
    writing, reading = row[1], granted()["stats"]
    assert (writing, reading) == (WRITE_RIGHTS, READ_RIGHTS)
    assert share_counts(login(guarded_server, f"{LEAST} {writing}"))
    with SharedCounts(login(guarded_server, f"{LEAST} {reading}")) as shared:
        assert shared.last(minutes=1) == {}
        assert shared.distinct_keys("api") == 0
    for right in writing.split():
        others = " ".join(other for other in writing.split() if other != right)
        assert not share_counts(login(guarded_server, f"{LEAST} {others}")), right
    for right in reading.split():
        others = " ".join(other for other in reading.split() if other != right)
        url = login(guarded_server, f"{LEAST} {others}")
        with SharedCounts(url) as shared, pytest.raises(EngineUnavailable, match=re.escape(f"user> {reading}")):
            _ = shared.series("api", minutes=1), shared.distinct_keys("api")


def share_counts(url: str) -> bool:
    """Counts a call of every kind, and returns whether it could be shared."""
    counts = Counts(shared_at=url)
    limiter = Limiter("1/hour", name="api", observers=[counts])
    limiter.take("ann")
    limiter.take("ann")
    shared = counts.flush()
    limiter.close()
    return shared


def test_a_follower_and_a_publisher_need_what_is_documented(guarded_server: RedisServer) -> None:
    def push_and_follow(rights: str) -> None:
        archive, close = open_version_store(parse_engine_url(login(guarded_server, f"{LEAST} {rights}")))
        versions = RulebookVersions(archive)
        for _ in range(21):
            versions.push("rules: []", '{"rules": []}', format="yaml", author="ann")
        assert versions.current() is not None
        close()

    documented = granted()["rules push"]
    push_and_follow(documented)
    for right in documented.split():
        others = [other for other in documented.split() if other != right]
        with pytest.raises(EngineUnavailable, match="lacks the right"):
            push_and_follow(" ".join(others))


@contextmanager
def clerk(servers: list[RedisServer], rules: str) -> Iterator[None]:
    """A user with exactly these rights, on all of them."""
    for server in servers:
        server.call("ACL", "SETUSER", "clerk", "reset", "on", ">secret", *rules.split())
    try:
        yield
    finally:
        for server in servers:
            server.call("ACL", "DELUSER", "clerk")


@pytest.mark.servers
@pytest.mark.parametrize("kind", KINDS)
async def test_the_least_rights_in_a_cluster(kind: str, request: pytest.FixtureRequest) -> None:
    """Whichever of the two is taken away is missed, and named."""
    cluster: Cluster = request.getfixturevalue("cluster" if kind == "redis" else "valkey_cluster")
    url = cluster.url.replace("://", "://clerk:secret@")
    source, target, _ = cluster.masters()
    moving = next(key for n in count() if cluster.master_of(key := f"key-{n}") is source)

    async def go(deadline: str) -> None:
        with Limiter("10/day", f"{url}?deadline={deadline}") as limiter:
            use(limiter)
            limiter.take_all([Charge(f"key {n}") for n in range(9)])
            limiter.take(moving)
        async with AsyncLimiter("10/day", f"{url}?deadline={deadline}") as awaited:
            await asyncio.gather(*(awaited.take(key) for key in ("a", "b", "c", moving)))

    nodes: list[RedisServer] = [*cluster.nodes]
    with cluster.moving_slot(slot_of(moving), target):
        with clerk(nodes, f"{LEAST} {IN_A_CLUSTER}"):
            await go("5s")
        for right in IN_A_CLUSTER.split():
            cluster.flush()
            others = " ".join(other for other in IN_A_CLUSTER.split() if other != right)
            with clerk(nodes, f"{LEAST} {others}"):
                with pytest.raises(EngineUnavailable, match="its user lacks the right to run ") as refused:
                    await go("1s")
                assert str(refused.value).endswith(f"Grant it: ACL SETUSER <user> {right}")
    cluster.move_slot(slot_of(moving), source)


async def test_the_least_rights_at_a_sentinel(sentinels: Sentinels) -> None:
    url = f"{sentinels.url}?sentinel_username=clerk&sentinel_password=secret&deadline=1s"
    watchers: list[RedisServer] = [*sentinels.sentinels]
    with clerk(watchers, AT_A_SENTINEL), Limiter("10/day", url) as limiter:
        assert limiter.take("key").remaining == 9
    with clerk(watchers, ""), Limiter("10/day", url) as limiter, pytest.raises(EngineUnavailable) as refused:
        limiter.take("key")
    assert "its user lacks the right to run sentinel" in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_takes_no_writes(kind: str) -> None:
    with RedisServer(kind) as master, RedisServer(kind) as replica:  # type: ignore[arg-type]
        replica.call("REPLICAOF", "127.0.0.1", master.port)
        with Limiter("5/hour", replica.url) as limiter, pytest.raises(EngineUnavailable) as refused:
            limiter.take("key")
        assert "it is a replica and takes no writes. Name the master in the engine's URL." in str(refused.value)
