"""What is counted: every count of ours on a server or in a cluster, found without stopping anybody.

SCAN walks through the keys about a thousand at a time, and we pause between two rounds, so whoever asks for
decisions waits for one round at most. Nothing is written, touched or deleted. The line is our own: those who
decide do not queue behind us.

In a cluster every master is walked. SCAN may tell a key twice, and one whose slot is just moving may be told by
both masters; we tell it once. A walk is no snapshot: what is counted all the while is found, what comes or goes
meanwhile may be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.algorithms import ALGORITHMS
from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.engines.redis import keys
from headgate.engines.redis.errors import NoScript, RedisError, failure
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder, command, facts, outside_calendar_us
from headgate.engines.redis.script_assembly import Script, bare, single
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.sync_connection import SyncConnection
from headgate.engines.redis.sync_engine import RedisEngine

ROUND = 1000  # keys that a server looks at in one go
TOGETHER = 200  # questions in one round trip
PAUSE = 0.002  # seconds between two rounds

_KINDS = {keys.initials(name): name for name in (*ALGORITHMS, Slots.algorithm)}
_special = "\\*?[]"


class RedisKey(NamedTuple):
    """One count: `key` is its text, or %# and a hash where the key was too long to be written."""

    algorithm: str
    name: str
    key: str
    redis_key: bytes
    ttl_ms: int | None  # None: it does not expire
    size: int | None  # bytes; None: the server did not say
    at: ServerAddress

    @property
    def told(self) -> bool:
        """Whether the key itself is known, and not only its hash."""
        return not self.key.startswith("%#")


class RedisKeyScan:
    """A walk through all counts, or those whose name begins so; `most` of them at most."""

    def __init__(self, engine: RedisEngine, begins: str = "", most: int = 100_000, pause: float = PAUSE) -> None:
        self._engine = engine
        self._begins = begins
        self._most = most
        self._pause = pause
        self._connections: dict[ServerAddress, SyncConnection] = {}
        self._seen: set[bytes] = set()
        self.found: int = 0
        self.stopped: bool = False  # before everything was seen

    def __iter__(self) -> Iterator[RedisKey]:
        engine = self._engine
        # Report servers that do not answer before we begin, by a command that the walk itself needs.
        engine.ask_everywhere(RedisRequest(command("SCAN", 0, "COUNT", 1), None))
        try:
            for address in engine.topology.masters:
                yield from self._walk(address)
        except RedisError as trouble:
            raise failure(engine.topology.text, engine.prefix, trouble) from trouble

    def _walk(self, address: ServerAddress) -> Iterator[RedisKey]:
        # Names are escaped in keys, so a name's beginning is not always the key's: what is left out is sure.
        begins = self._begins if self._begins.replace("_", "").replace("-", "").isalnum() else ""
        pattern = f"{_literal(self._engine.prefix)}{keys.LAYOUT}:??:{begins}*{{*}}"
        cursor = b"0"
        while not self.stopped:
            question = command("SCAN", cursor, "MATCH", pattern, "COUNT", ROUND)
            cursor, names = self._ask(address, [question])[0]
            new = [name for name in dict.fromkeys(names) if name not in self._seen]
            here = [(name, parsed) for name in new if (parsed := self._read(name))]
            self._seen.update(name for name, _ in here)
            yield from self._told(address, here)
            if cursor == b"0":
                return
            time.sleep(self._pause)

    def _read(self, redis_key: bytes) -> keys.ParsedKey | None:
        parsed = keys.parse(self._engine.prefix, redis_key)
        wanted = parsed is not None and parsed.initials in _KINDS and parsed.name.startswith(self._begins)
        return parsed if wanted else None

    def _told(self, address: ServerAddress, here: list[tuple[bytes, keys.ParsedKey]]) -> Iterator[RedisKey]:
        if self.found + len(here) > self._most:
            here = here[: self._most - self.found]
            self.stopped = True
        self.found += len(here)
        asked = [command("PTTL", name) for name, _ in here] + [
            command("MEMORY", "USAGE", name) for name, _ in here
        ]
        replies = self._ask(address, asked, strict=False)
        lives, sizes = replies[: len(here)], replies[len(here) :]
        for (name, parsed), ttl_ms, size in zip(here, lives, sizes, strict=True):
            if ttl_ms != -2:  # it has not died meanwhile
                life = ttl_ms if isinstance(ttl_ms, int) and ttl_ms >= 0 else None
                bytes_ = size if isinstance(size, int) else None
                yield RedisKey(_KINDS[parsed.initials], parsed.name, parsed.key, name, life, bytes_, address)

    def peek(self, counts: Sequence[tuple[RedisKey, Limit]]) -> list[Outcome | None]:
        """How each stands under its limit, by questions of cost 0; None: it moved, or cannot be asked."""
        found: list[Outcome | None] = [None] * len(counts)
        places: dict[ServerAddress, list[int]] = {}
        for place, (count, limit) in enumerate(counts):
            if count.algorithm == limit.algorithm:
                places.setdefault(count.at, []).append(place)
        for address, here in places.items():
            for start in range(0, len(here), TOGETHER):
                some = here[start : start + TOGETHER]
                for place, answer in zip(
                    some, self._peeked(address, [counts[each] for each in some]), strict=True
                ):
                    found[place] = answer
        return found

    def _peeked(
        self, address: ServerAddress, counts: Sequence[tuple[RedisKey, Limit]]
    ) -> Iterator[Outcome | None]:
        now_us = self._engine.clock.now_us()
        scripts: Mapping[str, Script] = {limit.algorithm: _script(limit) for _, limit in counts}
        asked = [_packed(scripts[limit.algorithm], count, limit, now_us) for count, limit in counts]
        replies = self._ask(address, asked, strict=False)
        if any(isinstance(reply, NoScript) for reply in replies):
            self._ask(address, [script.load for script in scripts.values()])
            replies = self._ask(address, asked, strict=False)
        for reply in replies:
            yield facts(reply) if isinstance(reply, list) and outside_calendar_us(reply) is None else None

    def _ask(self, address: ServerAddress, packed: Sequence[bytes], *, strict: bool = True) -> list[Any]:
        """Several questions in one go. What broke the line is raised; an error reply too, where it is strict."""
        engine, replies = self._engine, list[Any]()
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = SyncConnection(address, engine.deadline, engine.deadline)
        for start in range(0, len(packed), TOGETHER):
            some = packed[start : start + TOGETHER]
            replies += connection.exchange_all(b"".join(some), len(some), time.monotonic() + engine.deadline)
        for reply in replies:
            if isinstance(reply, RedisError) and (strict or connection.closed):
                raise reply
        return replies

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def _script(limit: Limit) -> Script:
    return bare("slots", "slots") if isinstance(limit, Slots) else single("take", limit.algorithm)


def _packed(script: Script, count: RedisKey, limit: Limit, now_us: int) -> bytes:
    """A peek by the Redis key itself, because of a hashed one no more is known."""
    start = ("EVALSHA", script.sha, 1, count.redis_key)
    if isinstance(limit, Slots):
        return command(*start, "peek", *limit.args)
    return command(*start, *RequestBuilder(limit, count.name, "hg").args(now_us), 0, -1)


def _literal(text: str) -> str:
    """For SCAN's patterns, which give a meaning to some characters."""
    return "".join(f"\\{each}" if each in _special else each for each in text)
