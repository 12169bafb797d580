"""Publishes scripts for gateways that talk to Redis themselves: loads them, and stores their SHA1 for gateways to
read.

    lua:sha1:rate_limiter    EVALSHA sha 1 key acquire N | init max_permits rate [ttl] | delete      1 or -1
    lua:sha1:token_bucket    EVALSHA sha 1 key N, on a hash with bucket_cap and rate or period       1, 0 or -1

A server does not pass its scripts on to its replicas, so each replica gets them too: after a failover they are
loaded. A replica that does not reply is reported to `warn`, and is no error. In a cluster every node gets them,
and the keys lie where the cluster puts them. A script is loaded before its SHA1 is stored, and an older one stays
loaded: a gateway that reads the key in between calls the older one, and never one that is missing.

A server loses its scripts when it restarts, and a replica that joins later never had them. So the texts lie in one
hash, `hg2:scripts`, by their SHA1, which replicas do have: a gateway that receives NOSCRIPT loads the text itself.
The scripts of a rulebook are stored there too. Texts are only added: a gateway may still use an older rulebook.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.engines.redis import keys
from headgate.engines.redis.errors import RedisError, engine_failure, wrong_value_error
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.engines.redis.script_assembly import Script, published_script
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.sync_connection import SyncConnection
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import CorruptState, EngineUnavailable
from headgate.flow import Flow, run

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine

SCRIPT_NAMES = ("rate_limiter", "token_bucket")

_log = logging.getLogger("headgate")
_ROLE = command("ROLE")
_SHA1 = re.compile(rb"[0-9a-f]{40}", re.I)


class PublishedScript(NamedTuple):
    """The name of a published script, the key of its SHA1, and the SHA1."""

    name: str
    key: str
    sha: str


def publish(url: str, warn: Callable[[str], object] = _log.warning) -> list[PublishedScript]:
    """Loads every published script, and stores its SHA1 and its text.

    Raises EngineUnavailable if a server fails, or CorruptState if a key holds something else; then nothing was
    stored. Calls `warn` with a sentence for each replica that did not get the scripts.
    """
    engine = RedisEngine(url)
    scripts = {name: published_script(name) for name in SCRIPT_NAMES}
    packed = [script.load for script in scripts.values()]
    try:
        for name in SCRIPT_NAMES:
            _check_sha1(engine, _sha1_key(name))
        store_texts(engine, {script.sha: script.text for script in scripts.values()})
        for master in engine.topology.masters:
            try:
                *_, role = _exchange(master, [*packed, _ROLE], engine.deadline)
            except RedisError as error:
                raise engine_failure(master.text, engine.prefix, error) from error
            _load_on_replicas(engine, master, role, packed, warn)
        for name, script in scripts.items():
            engine.execute(_request("SET", _sha1_key(name), script.sha))
    finally:
        engine.close()
    return [PublishedScript(name, _sha1_key(name), script.sha) for name, script in scripts.items()]


def _sha1_key(name: str) -> str:
    return f"lua:sha1:{name}"


def _request(verb: str, key: str, *args: str) -> RedisRequest:
    return RedisRequest(command(verb, key, *args), None, key.encode())


def _check_sha1(engine: RedisEngine, key: str) -> None:
    """Refuses to overwrite a value that is no SHA1."""
    try:
        stored = engine.execute(_request("GET", key))
    except CorruptState as error:
        raise _corrupt(engine, key) from error.__cause__
    if stored is not None and not _SHA1.fullmatch(stored):
        raise _corrupt(engine, key)


def _corrupt(engine: RedisEngine | AsyncRedisEngine, key: str) -> CorruptState | EngineUnavailable:
    return engine_failure(engine.topology.text, engine.prefix, wrong_value_error(key.encode()))


def _load_on_replicas(
    engine: RedisEngine, master: ServerAddress, role: Any, packed: Sequence[bytes], warn: Callable[[str], object]
) -> None:
    """Loads the scripts into the replicas that a master lists in its reply to ROLE."""
    if isinstance(role, RedisError):
        warn(
            f"The replicas of {master} did not get the scripts: {engine_failure(master.text, engine.prefix, role)}"
        )
        return
    for host, port, _ in role[2] if role[0] == b"master" else ():
        replica = master.at(host.decode(), int(port))
        try:
            _exchange(replica, packed, engine.deadline)
        except RedisError as error:
            why = engine_failure(replica.text, engine.prefix, error)
            warn(f"A replica did not get the scripts; publish again when it is back. {why}")


def _exchange(address: ServerAddress, packed: Sequence[bytes], deadline: float) -> list[Any]:
    """Returns the replies of one server; raises RedisError if one of them is an error, except that to ROLE."""
    connection = SyncConnection(address, deadline, deadline)
    try:
        replies = connection.exchange_all(b"".join(packed), len(packed), time.monotonic() + deadline)
    finally:
        connection.close()
    for request_bytes, reply in zip(packed, replies, strict=True):
        if isinstance(reply, RedisError) and request_bytes != _ROLE:
            raise reply
    return replies


def store_texts(engine: RedisEngine, texts: Mapping[str, str]) -> None:
    """Stores scripts on the server: adds each text that is missing to a hash, under its SHA1."""
    run(store_texts_flow(engine, texts))


def store_texts_flow(engine: RedisEngine | AsyncRedisEngine, texts: Mapping[str, str]) -> Flow[None]:
    """The steps of `store_texts`, for sync and async callers."""
    key = keys.scripts_key(engine.prefix)
    try:
        fields = yield partial(engine.execute, RedisRequest(command("HKEYS", key), None, key))
    except CorruptState as error:
        raise _corrupt(engine, key.decode()) from error.__cause__
    stored = {field.decode() for field in fields}
    missing = [arg for sha, text in texts.items() if sha not in stored for arg in (sha, text)]
    if missing:
        yield partial(engine.execute, RedisRequest(command("HSET", key, *missing), None, key))


def load_texts_flow(engine: RedisEngine | AsyncRedisEngine, texts: Mapping[str, str]) -> Flow[None]:
    """Loads these texts into every server, as a flow."""
    for text in texts.values():
        request = RedisRequest(Script(text).load, None)
        if isinstance(engine, RedisEngine):
            yield partial(engine.execute_everywhere, request)
        else:
            yield partial(_execute_everywhere, engine, request)


async def _execute_everywhere(engine: AsyncRedisEngine, request: RedisRequest) -> None:
    """Sends one request to every server."""
    key = keys.scripts_key(engine.prefix)
    await engine.execute(RedisRequest(command("HKEYS", key), None, key))  # this discovers the servers
    for address in engine.topology.servers:
        await engine.batcher(address).execute(request, False)
