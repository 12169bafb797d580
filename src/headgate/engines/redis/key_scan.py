"""Scans all counts on a server or in a cluster, without blocking other clients.

SCAN walks through the keys about a thousand at a time, with a pause between two steps, so a decision waits for one
step at most. Nothing is written, touched or deleted. The scan has its own connections: decisions do not queue
behind it.

In a cluster every master is scanned. SCAN may return a key twice, and a key whose slot is being moved may be
returned by both masters; we report it once. A scan is no snapshot: a key that exists all the while is found, one
that is created or deleted meanwhile may be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.algorithms import ALGORITHMS, pause
from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import SECOND, Limit
from headgate.algorithms.slots import Slots
from headgate.engines.redis import keys
from headgate.engines.redis.errors import NoScript, RedisError, engine_failure
from headgate.engines.redis.protocol import (
    RedisRequest,
    RequestBuilder,
    command,
    outside_calendar_us,
    parse_outcome,
)
from headgate.engines.redis.script_assembly import Script, algorithm_script, standalone_script
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.sync_connection import SyncConnection
from headgate.engines.redis.sync_engine import RedisEngine

SCAN_COUNT = 1000  # keys that a server examines in one step
BATCH_SIZE = 200  # requests in one round trip
PAUSE_S = 0.002  # between two steps, for other clients

_ALGORITHM_BY_INITIALS = {keys.initials(name): name for name in (*ALGORITHMS, Slots.algorithm)}
_PAUSE_INITIALS = keys.initials("pause")
_PATTERN_CHARS = "\\*?[]"


class RedisKey(NamedTuple):
    """One count. `key` is its text, or %# and a hash where the key was too long to be written."""

    algorithm: str
    name: str
    key: str
    redis_key: bytes
    ttl_ms: int | None  # None: never expires
    size: int | None  # bytes; None: unknown
    at: ServerAddress

    @property
    def is_readable(self) -> bool:
        """Returns whether the key itself is known, and not only its hash."""
        return not self.key.startswith("%#")


class RedisKeyScan:
    """Iterates over all counts, or those whose name begins with `begins`; at most `most` of them."""

    def __init__(
        self, engine: RedisEngine, prefix: str = "", max_keys: int = 100_000, pause: float = PAUSE_S
    ) -> None:
        self._engine = engine
        self._name_prefix = prefix
        self._max_keys = max_keys
        self._pause = pause
        self._connections: dict[ServerAddress, SyncConnection] = {}
        self._seen: set[bytes] = set()
        self.key_count: int = 0
        self.stopped: bool = False  # True: the scan ended before it saw all keys
        self.pauses: list[tuple[str, str, int]] = []  # name, key, and how long it is still paused

    def __iter__(self) -> Iterator[RedisKey]:
        engine = self._engine
        # Fail early on servers that do not reply, by a command that the scan itself needs.
        engine.execute_everywhere(RedisRequest(command("SCAN", 0, "COUNT", 1), None))
        try:
            for address in engine.topology.masters:
                yield from self._walk(address)
        except RedisError as error:
            raise engine_failure(engine.topology.text, engine.prefix, error) from error

    def _walk(self, address: ServerAddress) -> Iterator[RedisKey]:
        # Names are escaped in keys: match the server's pattern only on a prefix that is never escaped.
        pattern_start = self._name_prefix if self._name_prefix.replace("_", "").replace("-", "").isalnum() else ""
        pattern = f"{_escape_pattern(self._engine.prefix)}{keys.LAYOUT}:??:{pattern_start}*{{*}}"
        cursor = b"0"
        while not self.stopped:
            packed = command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            cursor, names = self._execute(address, [packed])[0]
            unseen = [name for name in dict.fromkeys(names) if name not in self._seen]
            parsed_keys = [(name, parsed) for name in unseen if (parsed := self._parse_key(name))]
            self._seen.update(name for name, _ in parsed_keys)
            paused = [(name, parsed) for name, parsed in parsed_keys if parsed.initials == _PAUSE_INITIALS]
            self._note_pauses(address, paused)
            yield from self._described(address, [each for each in parsed_keys if each not in paused])
            if cursor == b"0":
                return
            time.sleep(self._pause)

    def _parse_key(self, redis_key: bytes) -> keys.ParsedKey | None:
        parsed = keys.parse(self._engine.prefix, redis_key)
        wanted = (
            parsed is not None
            and (parsed.initials in _ALGORITHM_BY_INITIALS or parsed.initials == _PAUSE_INITIALS)
            and parsed.name.startswith(self._name_prefix)
        )
        return parsed if wanted else None

    def _note_pauses(self, address: ServerAddress, parsed_keys: list[tuple[bytes, keys.ParsedKey]]) -> None:
        """Notes the keys that are paused, and for how long."""
        if not parsed_keys:
            return
        commands = [command("TIME"), *(command("GET", name) for name, _ in parsed_keys)]
        (seconds, microseconds), *texts = self._execute(address, commands, strict=False)
        now_us = int(seconds) * SECOND + int(microseconds)
        for (_, parsed), text in zip(parsed_keys, texts, strict=True):
            try:
                left_us = pause.left_us(pause.current_state(pause.unpack(text.decode()), now_us), now_us)
            except (AttributeError, ValueError):
                continue  # it expired meanwhile, or headgate did not write it
            if left_us:
                self.pauses.append((parsed.name, parsed.key, left_us))

    def _described(
        self, address: ServerAddress, parsed_keys: list[tuple[bytes, keys.ParsedKey]]
    ) -> Iterator[RedisKey]:
        if self.key_count + len(parsed_keys) > self._max_keys:
            parsed_keys = parsed_keys[: self._max_keys - self.key_count]
            self.stopped = True
        self.key_count += len(parsed_keys)
        commands = [command("PTTL", name) for name, _ in parsed_keys] + [
            command("MEMORY", "USAGE", name) for name, _ in parsed_keys
        ]
        replies = self._execute(address, commands, strict=False)
        ttls, sizes = replies[: len(parsed_keys)], replies[len(parsed_keys) :]
        for (name, parsed), ttl_ms, size in zip(parsed_keys, ttls, sizes, strict=True):
            if ttl_ms != -2:  # -2: it expired meanwhile
                ttl_or_none = ttl_ms if isinstance(ttl_ms, int) and ttl_ms >= 0 else None
                size_or_none = size if isinstance(size, int) else None
                yield RedisKey(
                    _ALGORITHM_BY_INITIALS[parsed.initials],
                    parsed.name,
                    parsed.key,
                    name,
                    ttl_or_none,
                    size_or_none,
                    address,
                )

    def peek(self, counts: Sequence[tuple[RedisKey, Limit]]) -> list[Outcome | None]:
        """Returns the state of each count under its limit, by takes of cost 0; None: it moved, or its limit does
        not fit."""
        outcomes: list[Outcome | None] = [None] * len(counts)
        by_server: dict[ServerAddress, list[int]] = {}
        for index, (count, limit) in enumerate(counts):
            if count.algorithm == limit.algorithm:
                by_server.setdefault(count.at, []).append(index)
        for address, indexes in by_server.items():
            for start in range(0, len(indexes), BATCH_SIZE):
                batch = indexes[start : start + BATCH_SIZE]
                for index, outcome in zip(
                    batch, self._peek_at(address, [counts[each] for each in batch]), strict=True
                ):
                    outcomes[index] = outcome
        return outcomes

    def _peek_at(
        self, address: ServerAddress, counts: Sequence[tuple[RedisKey, Limit]]
    ) -> Iterator[Outcome | None]:
        now_us = self._engine.clock.now_us()
        scripts: Mapping[str, Script] = {limit.algorithm: _peek_script(limit) for _, limit in counts}
        commands = [_peek_command(scripts[limit.algorithm], count, limit, now_us) for count, limit in counts]
        replies = self._execute(address, commands, strict=False)
        if any(isinstance(reply, NoScript) for reply in replies):
            self._execute(address, [script.load for script in scripts.values()])
            replies = self._execute(address, commands, strict=False)
        for reply in replies:
            yield parse_outcome(reply) if isinstance(reply, list) and outside_calendar_us(reply) is None else None

    def _execute(self, address: ServerAddress, packed: Sequence[bytes], *, strict: bool = True) -> list[Any]:
        """Sends several commands. Raises if the connection breaks; on an error reply too, if `strict`."""
        engine, replies = self._engine, list[Any]()
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = SyncConnection(address, engine.deadline, engine.deadline)
        for start in range(0, len(packed), BATCH_SIZE):
            batch = packed[start : start + BATCH_SIZE]
            replies += connection.exchange_all(b"".join(batch), len(batch), time.monotonic() + engine.deadline)
        for reply in replies:
            if isinstance(reply, RedisError) and (strict or connection.closed):
                raise reply
        return replies

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def _peek_script(limit: Limit) -> Script:
    return (
        standalone_script("slots", "slots")
        if isinstance(limit, Slots)
        else algorithm_script("take", limit.algorithm)
    )


def _peek_command(script: Script, count: RedisKey, limit: Limit, now_us: int) -> bytes:
    """Packs a peek by the Redis key itself, because the key behind a hash is unknown."""
    start = ("EVALSHA", script.sha, 1, count.redis_key)
    if isinstance(limit, Slots):
        return command(*start, "peek", *limit.args)
    return command(*start, *RequestBuilder(limit, count.name, "hg").args(now_us), 0, -1)


def _escape_pattern(text: str) -> str:
    """Escapes the characters that have a meaning in SCAN's patterns."""
    return "".join(f"\\{each}" if each in _PATTERN_CHARS else each for each in text)
