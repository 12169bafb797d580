"""Scripts for gateways that talk to Redis themselves: loaded into the server, their SHA1 stored where they look.

    lua:sha1:rate_limiter    EVALSHA sha 1 key acquire N | init max_permits rate [ttl] | delete      1 or -1
    lua:sha1:token_bucket    EVALSHA sha 1 key N, on a hash with bucket_cap and rate or period       1, 0 or -1

In a cluster every node gets the scripts, replicas too, and the keys lie where the cluster puts them. A script is
loaded before its SHA1 is stored, and an older one stays loaded: a gateway that reads the key in
between calls the older one, and never one that is not there. A server forgets its scripts when it restarts
(and the key may well survive it), so publish again then; a gateway that is told NOSCRIPT should wait for that.

A gateway that follows a rulebook finds the SHA1 in the edition and the texts in one hash, `hg2:scripts`: it sends
a text itself to a server that has forgotten it. Texts are only added: a gateway may still go by an older book.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headgate.engine.redis import naming
from headgate.engine.redis.blocking import RedisEngine
from headgate.engine.redis.script import Script, published
from headgate.engine.redis.wire import Question, command
from headgate.flow import Flow, run

if TYPE_CHECKING:
    from headgate.engine.redis.awaiting import AsyncRedisEngine

NAMES = ("rate_limiter", "token_bucket")


class Published(NamedTuple):
    name: str
    key: str
    sha: str


def publish(url: str) -> list[Published]:
    """Load every published script and store its SHA1. EngineUnavailable says what stood in the way."""
    engine = RedisEngine(url)
    try:
        return [_publish(engine, name) for name in NAMES]
    finally:
        engine.close()


def _publish(engine: RedisEngine, name: str) -> Published:
    script, key = published(name), f"lua:sha1:{name}"
    engine.ask_everywhere(Question(script.load, None))
    engine.ask(Question(command("SET", key, script.sha), None, key.encode()))
    return Published(name, key, script.sha)


def keep(engine: RedisEngine, texts: Mapping[str, str]) -> None:
    """Put the texts that are missing into the hash, by their SHA1."""
    run(keeping(engine, texts))


def keeping(engine: RedisEngine | AsyncRedisEngine, texts: Mapping[str, str]) -> Flow[None]:
    """The same as a flow."""
    key = naming.scripts(engine.prefix)
    fields = yield partial(engine.ask, Question(command("HKEYS", key), None, key))
    there = {field.decode() for field in fields}
    missing = [word for sha, text in texts.items() if sha not in there for word in (sha, text)]
    if missing:
        yield partial(engine.ask, Question(command("HSET", key, *missing), None, key))


def loading(engine: RedisEngine | AsyncRedisEngine, texts: Mapping[str, str]) -> Flow[None]:
    """Load these texts into every server there is."""
    for text in texts.values():
        question = Question(Script(text).load, None)
        if isinstance(engine, RedisEngine):
            yield partial(engine.ask_everywhere, question)
        else:
            yield partial(_everywhere, engine, question)


async def _everywhere(engine: AsyncRedisEngine, question: Question) -> None:
    """The same question of every server there is."""
    await engine.ask(Question(command("PING"), None))  # now it is known who they are
    for address in engine.topology.servers:
        await engine.channel(address).ask(question, False)
