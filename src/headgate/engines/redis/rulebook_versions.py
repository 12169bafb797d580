"""The archive: numbered papers in one hash, `hg2:rules`, that whoever shares the server reads.

The engine does not know what a paper says. It numbers and dates them in one step
(lua/commands/rulebook_versions.lua), keeps the last twenty, and tells cheaply which one is the latest. What an
edition of a rulebook is, rules/editions.py knows; it works on either archive.

Laws (tests/engines/redis/test_rulebook_versions.py):
  - two papers never get the same number, however many are added at once;
  - a paper, once added, is never changed, and is there until twenty newer ones are;
  - one who expects another latest number than there is adds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.engines.redis import keys
from headgate.engines.redis.errors import failure, wrong_value_error
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.engines.redis.script_assembly import bare
from headgate.errors import CorruptState

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine
    from headgate.engines.redis.sync_engine import RedisEngine

KEPT = 20

Stamp = tuple[
    int, int
]  # the latest number, and when it was given (in microseconds); zeros: nothing was ever added


class _Asked:
    """What is asked about one archive, and what the replies mean."""

    def __init__(self, engine: RedisEngine | AsyncRedisEngine) -> None:
        self.key = keys.rules(engine.prefix)
        self.where = engine.topology.text
        self.text = f"Redis at {engine.topology.text} ({self.key.decode()})"

    def add(self, paper: str, expected: int | None) -> RedisRequest:
        script = bare("rulebook_versions")
        said = "" if expected is None else expected
        return RedisRequest(
            command("EVALSHA", script.sha, 1, self.key, said, KEPT, paper.encode()), script, self.key
        )

    def ask(self, verb: str, *fields: str | int) -> RedisRequest:
        return RedisRequest(command(verb, self.key, *fields), None, self.key)

    def corrupt(self) -> Exception:
        """That the key holds something else: plain commands do not say which one it is."""
        return failure(self.where, "", wrong_value_error(self.key))

    @staticmethod
    def added(reply: list[int]) -> tuple[bool, int, int]:
        return (True, reply[1], reply[2]) if reply[0] else (False, reply[1], 0)

    @staticmethod
    def stamp(reply: list[bytes | None]) -> Stamp:
        version, at_us = map(_number, reply)
        return version, at_us

    @staticmethod
    def versions(reply: list[bytes]) -> list[int]:
        return sorted((int(field) for field in reply if field.isdigit()), reverse=True)


class RedisVersionStore:
    """The papers, asked for through an engine that somebody else opens and closes."""

    def __init__(self, engine: RedisEngine) -> None:
        self._asked = _Asked(engine)
        self._engine = engine
        self.text: str = self._asked.text

    def _ask(self, question: RedisRequest) -> Any:
        try:
            return self._engine.ask(question)
        except CorruptState as error:
            raise self._asked.corrupt() from error.__cause__

    def add(self, paper: str, expected: int | None = None) -> tuple[bool, int, int]:
        """Whether it was added, under which number and when; or the latest number, if not the expected one."""
        return self._asked.added(self._ask(self._asked.add(paper, expected)))

    def stamp(self) -> Stamp:
        """The latest number, and when it was given."""
        return self._asked.stamp(self._ask(self._asked.ask("HMGET", "version", "at_us")))

    def paper(self, version: int) -> bytes | None:
        found: bytes | None = self._ask(self._asked.ask("HGET", version))
        return found

    def versions(self) -> list[int]:
        """The numbers of all papers that are kept, newest first."""
        return self._asked.versions(self._ask(self._asked.ask("HKEYS")))


class AsyncRedisVersionStore:
    """The same, awaited."""

    def __init__(self, engine: AsyncRedisEngine) -> None:
        self._asked = _Asked(engine)
        self._engine = engine
        self.text: str = self._asked.text

    async def _ask(self, question: RedisRequest) -> Any:
        try:
            return await self._engine.ask(question)
        except CorruptState as error:
            raise self._asked.corrupt() from error.__cause__

    async def add(self, paper: str, expected: int | None = None) -> tuple[bool, int, int]:
        return self._asked.added(await self._ask(self._asked.add(paper, expected)))

    async def stamp(self) -> Stamp:
        return self._asked.stamp(await self._ask(self._asked.ask("HMGET", "version", "at_us")))

    async def paper(self, version: int) -> bytes | None:
        found: bytes | None = await self._ask(self._asked.ask("HGET", version))
        return found

    async def versions(self) -> list[int]:
        return self._asked.versions(await self._ask(self._asked.ask("HKEYS")))


def _number(field: Any) -> int:
    """What somebody wrote there by hand counts as nothing."""
    return int(field) if field is not None and field.isdigit() else 0
