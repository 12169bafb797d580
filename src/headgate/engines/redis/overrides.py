"""Overrides in Redis: a string beside the counts of its key, in the same slot, read by the script that decides.

Nothing is read ahead, so any number of overrides costs nothing. Only `list` reads many: server by server and page
by page, by SCAN, which blocks no other client. An override that is set or unset meanwhile may be listed or not;
none is listed twice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from headgate.engines import overrides
from headgate.engines.redis import keys, protocol
from headgate.engines.redis.errors import RedisError, WrongType, wrong_value_error
from headgate.engines.redis.protocol import RedisRequest
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.topology import Topology
from headgate.errors import CorruptState
from headgate.flow import Flow, arun, run

Execute = Callable[[RedisRequest], Any]
ExecuteAt = Callable[[ServerAddress, RedisRequest], Any]
ExecuteAll = Callable[[Sequence[RedisRequest]], Any]
Failure = Callable[[RedisError], Exception]
OverridePage = list[tuple[str, str]]

SCAN_COUNT = 1000  # keys that a server examines in one step


class OverrideRequestBuilder:
    """Builds the requests about the overrides of one rule. Pure."""

    def __init__(self, rule: str, prefix: str) -> None:
        self.head: bytes = keys.key_head(prefix, "override", rule)
        self._pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", self.head) + b"*}"

    def set(self, key: str, limits: str, absent: bool, ttl: float | None) -> RedisRequest:
        key, parsed, ttl_us = overrides.validate_override(key, limits, ttl)
        args: list[str | int] = [] if ttl_us is None else ["PX", -(-ttl_us // 1000)]
        return self._request("SET", key, overrides.pack(parsed), *args, *(["NX"] if absent else []))

    def get(self, key: str) -> RedisRequest:
        return self._request("GET", overrides.validate_key(key))

    def expires_in(self, key: str) -> RedisRequest:
        return self._request("PTTL", overrides.validate_key(key))

    def unset(self, key: str) -> RedisRequest:
        return self._request("UNLINK", overrides.validate_key(key))

    def _request(self, verb: str, key: str, *args: str | int) -> RedisRequest:
        return RedisRequest(
            protocol.command(verb, keys.build_key(self.head, key), *args), None, keys.escape_key(key)
        )

    def scan(self, cursor: bytes) -> RedisRequest:
        return RedisRequest(protocol.command("SCAN", cursor, "MATCH", self._pattern, "COUNT", SCAN_COUNT), None)

    def values(self, names: Sequence[bytes], any_keys_together: bool) -> list[RedisRequest]:
        """Builds the reads of these keys: one request for all, or one for each where they may lie in several
        slots."""
        if any_keys_together:
            return [RedisRequest(protocol.command("MGET", *names), None)]
        return [RedisRequest(protocol.command("GET", name), None, self.tag(name)) for name in names]

    def tag(self, name: bytes) -> bytes:
        """Returns the hash tag of an override's Redis key."""
        return name[len(self.head) : -1]

    def wrong_value_error(self, key: str) -> WrongType:
        """Returns the error for an override's key that holds something else."""
        return wrong_value_error(keys.build_key(self.head, key))


def limits_text(stored: bytes) -> str:
    """Returns the text of the limits; raises WrongType if they cannot be read."""
    text = overrides.unpack(stored.decode(errors="replace"))
    if not text:
        raise WrongType("what is stored is no override")
    return text


class OverrideScan:
    """Walks over the overrides of all servers; each step is a flow that returns a page."""

    def __init__(
        self, builder: OverrideRequestBuilder, topology: Topology, execute_at: ExecuteAt, execute_all: ExecuteAll
    ) -> None:
        self._builder, self._any_keys_together = builder, topology.any_keys_together
        self._execute_at, self._execute_all = execute_at, execute_all
        self._servers = list(topology.masters)
        self._cursor = b"0"
        self._seen: set[bytes] = set()

    @property
    def finished(self) -> bool:
        return not self._servers

    def next_page(self) -> Flow[OverridePage]:
        """Returns the next overrides, maybe none, as pairs of key and limits."""
        cursor, names = yield partial(self._execute_at, self._servers[0], self._builder.scan(self._cursor))
        self._cursor = bytes(cursor)
        if self._cursor == b"0":
            self._servers.pop(0)
        unseen = [name for name in dict.fromkeys(names) if name not in self._seen]
        if not unseen:
            return []
        self._seen.update(unseen)
        replies = yield partial(self._execute_all, self._builder.values(unseen, self._any_keys_together))
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        values_in_order = replies[0] if self._any_keys_together else replies
        page = []
        for name, stored in zip(unseen, values_in_order, strict=True):
            key = keys.unescape_key(self._builder.tag(name))
            try:
                if stored is not None:
                    page.append((key, limits_text(stored)))
            except WrongType:
                raise wrong_value_error(name) from None
        return page


class _OverrideAccess:
    """The common part of sync and async access. `execute`, `open_scan` and `failure` are the engine's."""

    def __init__(
        self, builder: OverrideRequestBuilder, execute: Execute, open_scan: Callable[[], Any], failure: Failure
    ) -> None:
        self._builder, self._execute, self._open_scan, self._failure = builder, execute, open_scan, failure


class RedisOverrides(_OverrideAccess):
    """The overrides of one rule."""

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        return self._execute(self._builder.set(key, limits, absent, ttl)) is not None

    def get(self, key: str) -> str | None:
        try:
            stored: bytes | None = self._execute(self._builder.get(key))
            return None if stored is None else limits_text(stored)
        except (CorruptState, WrongType) as error:
            raise self._failure(self._builder.wrong_value_error(key)) from error

    def unset(self, key: str) -> bool:
        return bool(self._execute(self._builder.unset(key)))

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        remaining, scan = limit, self._open_scan()
        while not scan.finished and remaining != 0:
            try:
                page = run(scan.next_page())
            except RedisError as error:
                raise self._failure(error) from error
            for override in page[:remaining]:
                yield override
                remaining = None if remaining is None else remaining - 1


class AsyncRedisOverrides(_OverrideAccess):
    """The overrides of one rule, awaited."""

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        return await self._execute(self._builder.set(key, limits, absent, ttl)) is not None

    async def get(self, key: str) -> str | None:
        try:
            stored: bytes | None = await self._execute(self._builder.get(key))
            return None if stored is None else limits_text(stored)
        except (CorruptState, WrongType) as error:
            raise self._failure(self._builder.wrong_value_error(key)) from error

    async def expires_in(self, key: str) -> float | None:
        """Returns the seconds until the override of a key ends by itself; None: it lasts, or there is none."""
        remaining_ms: int = await self._execute(self._builder.expires_in(key))
        return remaining_ms / 1000 if remaining_ms >= 0 else None

    async def unset(self, key: str) -> bool:
        return bool(await self._execute(self._builder.unset(key)))

    async def list(self, limit: int | None = None) -> AsyncIterator[tuple[str, str]]:
        remaining, scan = limit, await self._open_scan()
        while not scan.finished and remaining != 0:
            try:
                page = await arun(scan.next_page())
            except RedisError as error:
                raise self._failure(error) from error
            for override in page[:remaining]:
                yield override
                remaining = None if remaining is None else remaining - 1
