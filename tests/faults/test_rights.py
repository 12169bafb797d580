"""What a user of the server may do: the least that suffices, and a sentence for whatever is missing."""

from collections.abc import Iterator

import pytest

from headgate.engine.redis.wire import Questions
from headgate.errors import EngineUnavailable
from headgate.limiter import Limiter
from headgate.model.decision import Charge
from headgate.text import parse
from tests.servers import KINDS, RedisServer

# The least: EVALSHA and SCRIPT LOAD, and what the scripts themselves call, on our keys only. UNLINK is reset's.
SCRIPTS = "+evalsha +script|load +unlink"
STRINGS = "+time +get +set +del +getrange +setrange +pexpire"
SLOTS = "+zadd +zrem +zscore +zcount +zrangebyscore +zrevrange +zincrby +pexpireat"
LEAST = f"~hg1:* {SCRIPTS} {STRINGS} {SLOTS}"

LIMITS = [
    *("10/s", "7/s burst 9", "10/s queue 9", "10/s fixed", "9/month fixed in Asia/Shanghai"),
    *("10/s sliding", "10/s log", "10/s smooth", "10/s smooth warmup 5s"),
]


@pytest.fixture(scope="module", params=KINDS)
def guarded_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


def login(server: RedisServer, rules: str) -> str:
    """The URL of a user with exactly these rights."""
    server.flush()
    server.call("ACL", "SETUSER", "clerk", "reset", "on", ">secret", *rules.split())
    return f"redis://clerk:secret@127.0.0.1:{server.port}/0"


def key_of(text: str, name: str | None = None) -> bytes:
    return Questions(parse(text), name or text, "hg").key("key")


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


def without(*commands: str) -> str:
    return " ".join(word for word in LEAST.split() if word.removeprefix("+") not in commands)


@pytest.mark.parametrize("text", LIMITS)
def test_the_least_rights_suffice(text: str, guarded_server: RedisServer) -> None:
    with Limiter(text, login(guarded_server, LEAST)) as limiter:
        use(limiter)


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
    with Limiter("2 slots", url) as held:
        lease = held.acquire("key")
        lease.renew()
        lease.release()
        held.acquire("key")
        held.acquire("key").release()
        held.peek("key")
    # A clock that stepped back, which nobody can make here: the slots' leases are moved along.
    with Limiter("2 slots", url, name="stepped") as held:
        held.acquire("key")
        server.call("ZADD", key_of("2 slots", "stepped"), 9 * 10**15, "stamp")
        held.acquire("key")


@pytest.mark.parametrize("keys", ["", "~other:*", "%R~hg1:*"])
def test_keys_that_may_not_be_touched(keys: str, guarded_server: RedisServer) -> None:
    with Limiter("1/s", login(guarded_server, f"{keys} +@all")) as limiter:
        with pytest.raises(EngineUnavailable, match="its user may not touch our keys") as refused:
            limiter.take("key")
        assert "Grant them: ACL SETUSER <user> ~hg1:*" in str(refused.value)
        with pytest.raises(EngineUnavailable, match="its user may not touch our keys"):
            limiter.take_all([("a", "2/s"), ("b", "3/s log")])


def test_the_sentence_names_the_prefix_in_use(guarded_server: RedisServer) -> None:
    url = login(guarded_server, "~hg1:* +@all")
    with Limiter("1/s", url, prefix="mine") as limiter, pytest.raises(EngineUnavailable, match=r"~mine1:\*"):
        limiter.take("key")


def test_another_database_needs_select(guarded_server: RedisServer) -> None:
    url = login(guarded_server, LEAST).removesuffix("/0") + "/1"
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


def test_a_key_that_holds_something_else(guarded_server: RedisServer) -> None:
    guarded_server.flush()
    for text in ("5/hour", "5/hour log", "2 slots"):
        with Limiter(text, guarded_server.url) as limiter:
            key = key_of(text)
            guarded_server.call("RPUSH", key, "not ours")
            with pytest.raises(EngineUnavailable, match="holds something that is not ours") as refused:
                limiter.peek("key")
            assert "Choose another prefix" in str(refused.value)
            guarded_server.call("DEL", key)
            assert limiter.peek("key")


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_takes_no_writes(kind: str) -> None:
    with RedisServer(kind) as master, RedisServer(kind) as replica:  # type: ignore[arg-type]
        replica.call("REPLICAOF", "127.0.0.1", master.port)
        with Limiter("5/hour", replica.url) as limiter, pytest.raises(EngineUnavailable) as refused:
            limiter.take("key")
        assert "it is a replica and takes no writes. Name the master in the engine's URL." in str(refused.value)
