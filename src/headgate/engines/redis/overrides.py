"""Overrides in Redis: a string beside the counts of its key, in the same slot, read by the script that decides.

Nothing is read ahead, so as many as there are cost nothing. Only `list` looks at many: server by server and
page by page, by SCAN, which keeps nobody waiting. What is set or unset meanwhile may be told or not; nothing is
told twice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
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

Ask = Callable[[RedisRequest], Any]
AskAt = Callable[[ServerAddress, RedisRequest], Any]
AskAll = Callable[[Sequence[RedisRequest]], Any]
Failure = Callable[[RedisError], Exception]
Found = list[tuple[str, str]]

PAGE = 1000  # keys that a server looks at in one step


class OverrideRequestBuilder:
    """What is asked about the overrides of one rule, and what the answers mean. Pure."""

    def __init__(self, rule: str, prefix: str) -> None:
        self.head: bytes = keys.head(prefix, "override", rule)
        self._pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", self.head) + b"*}"

    def set(self, key: str, limits: str, absent: bool, ttl: float | None) -> RedisRequest:
        key, found, life_us = overrides.checked(key, limits, ttl)
        words: list[str | int] = [] if life_us is None else ["PX", -(-life_us // 1000)]
        return self._of("SET", key, overrides.pack(found), *words, *(["NX"] if absent else []))

    def get(self, key: str) -> RedisRequest:
        return self._of("GET", overrides.checked_key(key))

    def unset(self, key: str) -> RedisRequest:
        return self._of("UNLINK", overrides.checked_key(key))

    def _of(self, verb: str, key: str, *words: str | int) -> RedisRequest:
        return RedisRequest(protocol.command(verb, keys.tagged(self.head, key), *words), None, keys.escaped(key))

    def scan(self, cursor: bytes) -> RedisRequest:
        return RedisRequest(protocol.command("SCAN", cursor, "MATCH", self._pattern, "COUNT", PAGE), None)

    def values(self, names: Sequence[bytes], any_keys_together: bool) -> list[RedisRequest]:
        """What those keys hold: one question for all, or one for each where they may lie apart."""
        if any_keys_together:
            return [RedisRequest(protocol.command("MGET", *names), None)]
        return [RedisRequest(protocol.command("GET", name), None, self.tag(name)) for name in names]

    def tag(self, name: bytes) -> bytes:
        return name[len(self.head) : -1]

    def wrong_value_error(self, key: str) -> WrongType:
        """That the key of an override holds something else."""
        return wrong_value_error(keys.tagged(self.head, key))


def text(stored: bytes) -> str:
    """The limits' text; WrongType if they cannot be read."""
    found = overrides.unpack(stored.decode(errors="replace"))
    if not found:
        raise WrongType("what is stored is no override")
    return found


class Listing:
    """A walk over all servers: each step is a flow, and brings a page."""

    def __init__(
        self, questions: OverrideRequestBuilder, topology: Topology, ask_at: AskAt, ask_all: AskAll
    ) -> None:
        self._questions, self._joins = questions, topology.any_keys_together
        self._ask_at, self._ask_all = ask_at, ask_all
        self._servers = list(topology.masters)
        self._cursor = b"0"
        self._seen: set[bytes] = set()

    @property
    def over(self) -> bool:
        return not self._servers

    def page(self) -> Flow[Found]:
        cursor, names = yield partial(self._ask_at, self._servers[0], self._questions.scan(self._cursor))
        self._cursor = bytes(cursor)
        if self._cursor == b"0":
            self._servers.pop(0)
        fresh = [name for name in dict.fromkeys(names) if name not in self._seen]
        if not fresh:
            return []
        self._seen.update(fresh)
        replies = yield partial(self._ask_all, self._questions.values(fresh, self._joins))
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        held = replies[0] if self._joins else replies
        found = []
        for name, stored in zip(fresh, held, strict=True):
            key = keys.unescaped(self._questions.tag(name))
            try:
                if stored is not None:
                    found.append((key, text(stored)))
            except WrongType:
                raise wrong_value_error(name) from None
        return found


class RedisOverrides:
    """The overrides of one rule, asked and answered at once."""

    def __init__(
        self, questions: OverrideRequestBuilder, ask: Ask, listing: Callable[[], Listing], failure: Failure
    ) -> None:
        self._questions, self._ask, self._listing, self._failure = questions, ask, listing, failure

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        return self._ask(self._questions.set(key, limits, absent, ttl)) is not None

    def get(self, key: str) -> str | None:
        try:
            stored: bytes | None = self._ask(self._questions.get(key))
            return None if stored is None else text(stored)
        except (CorruptState, WrongType) as error:
            raise self._failure(self._questions.wrong_value_error(key)) from error

    def unset(self, key: str) -> bool:
        return bool(self._ask(self._questions.unset(key)))

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        left, listing = limit, self._listing()
        while not listing.over and left != 0:
            try:
                page = run(listing.page())
            except RedisError as trouble:
                raise self._failure(trouble) from trouble
            for found in page[:left]:
                yield found
                left = None if left is None else left - 1


class AsyncRedisOverrides:
    """The same, awaited."""

    def __init__(
        self,
        questions: OverrideRequestBuilder,
        ask: Ask,
        listing: Callable[[], Awaitable[Listing]],
        failure: Failure,
    ) -> None:
        self._questions, self._ask, self._listing, self._failure = questions, ask, listing, failure

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        return await self._ask(self._questions.set(key, limits, absent, ttl)) is not None

    async def get(self, key: str) -> str | None:
        try:
            stored: bytes | None = await self._ask(self._questions.get(key))
            return None if stored is None else text(stored)
        except (CorruptState, WrongType) as error:
            raise self._failure(self._questions.wrong_value_error(key)) from error

    async def unset(self, key: str) -> bool:
        return bool(await self._ask(self._questions.unset(key)))

    async def list(self, limit: int | None = None) -> AsyncIterator[tuple[str, str]]:
        left, listing = limit, await self._listing()
        while not listing.over and left != 0:
            try:
                page = await arun(listing.page())
            except RedisError as trouble:
                raise self._failure(trouble) from trouble
            for found in page[:left]:
                yield found
                left = None if left is None else left - 1
