"""The store of published rulebook versions: numbered documents in one hash, `hg2:rules`, that all clients of the
server read.

The engine does not parse documents. It numbers and dates documents in one step
(lua/commands/rulebook_versions.lua), keeps the last twenty, and reports cheaply which one is the latest. Their
content is the business of rules/distribution/published_versions.py, which works on either store.

Laws (tests/engines/redis/test_rulebook_versions.py):
  - two versions never get the same number, however many are added at once;
  - a version, once added, is never changed, and exists until twenty newer ones do;
  - a writer that expects another latest number than the stored one adds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.engines.redis import keys
from headgate.engines.redis.errors import engine_failure, wrong_value_error
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.engines.redis.script_assembly import standalone_script
from headgate.errors import CorruptState

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine
    from headgate.engines.redis.sync_engine import RedisEngine

MAX_VERSIONS = 20

# The latest version, and when it was published (in microseconds); zeros: nothing was ever published.
Stamp = tuple[int, int]


class _VersionRequests:
    """Builds the requests about one store, and parses their replies."""

    def __init__(self, engine: RedisEngine | AsyncRedisEngine) -> None:
        self.key = keys.rules_key(engine.prefix)
        self.where = engine.topology.text
        self.text = f"Redis at {engine.topology.text} ({self.key.decode()})"

    def add(self, document: str, expected: int | None) -> RedisRequest:
        script = standalone_script("rulebook_versions")
        expected_arg = "" if expected is None else expected
        return RedisRequest(
            command("EVALSHA", script.sha, 1, self.key, expected_arg, MAX_VERSIONS, document.encode()),
            script,
            self.key,
        )

    def read(self, verb: str, *fields: str | int) -> RedisRequest:
        return RedisRequest(command(verb, self.key, *fields), None, self.key)

    def corrupt_error(self) -> Exception:
        """Returns the error for a key that holds something else: plain commands do not name the key."""
        return engine_failure(self.where, "", wrong_value_error(self.key))

    @staticmethod
    def parse_added(reply: list[int]) -> tuple[bool, int, int]:
        return (True, reply[1], reply[2]) if reply[0] else (False, reply[1], 0)

    @staticmethod
    def parse_stamp(reply: list[bytes | None]) -> Stamp:
        version, at_us = map(_number_or_zero, reply)
        return version, at_us

    @staticmethod
    def parse_versions(reply: list[bytes]) -> list[int]:
        return sorted((int(field) for field in reply if field.isdigit()), reverse=True)


class RedisVersionStore:
    """The published versions, read and written through an engine that the caller opens and closes."""

    def __init__(self, engine: RedisEngine) -> None:
        self._requests = _VersionRequests(engine)
        self._engine = engine
        self.text: str = self._requests.text

    def _execute(self, request: RedisRequest) -> Any:
        try:
            return self._engine.execute(request)
        except CorruptState as error:
            raise self._requests.corrupt_error() from error.__cause__

    def add(self, document: str, expected: int | None = None) -> tuple[bool, int, int]:
        """Adds a version. Returns whether it was added, its number and time; or the latest number, if it is not
        the expected one."""
        return self._requests.parse_added(self._execute(self._requests.add(document, expected)))

    def stamp(self) -> Stamp:
        """Returns the latest number, and when it was published."""
        return self._requests.parse_stamp(self._execute(self._requests.read("HMGET", "version", "at_us")))

    def load_version(self, version: int) -> bytes | None:
        """Returns the document of one version; None if there is none."""
        document: bytes | None = self._execute(self._requests.read("HGET", version))
        return document

    def versions(self) -> list[int]:
        """Returns the numbers of all stored versions, newest first."""
        return self._requests.parse_versions(self._execute(self._requests.read("HKEYS")))


class AsyncRedisVersionStore:
    """The published versions, awaited."""

    def __init__(self, engine: AsyncRedisEngine) -> None:
        self._requests = _VersionRequests(engine)
        self._engine = engine
        self.text: str = self._requests.text

    async def _execute(self, request: RedisRequest) -> Any:
        try:
            return await self._engine.execute(request)
        except CorruptState as error:
            raise self._requests.corrupt_error() from error.__cause__

    async def add(self, document: str, expected: int | None = None) -> tuple[bool, int, int]:
        return self._requests.parse_added(await self._execute(self._requests.add(document, expected)))

    async def stamp(self) -> Stamp:
        return self._requests.parse_stamp(await self._execute(self._requests.read("HMGET", "version", "at_us")))

    async def load_version(self, version: int) -> bytes | None:
        document: bytes | None = await self._execute(self._requests.read("HGET", version))
        return document

    async def versions(self) -> list[int]:
        return self._requests.parse_versions(await self._execute(self._requests.read("HKEYS")))


def _number_or_zero(field: Any) -> int:
    """Parses a number; a value that somebody wrote there by hand counts as zero."""
    return int(field) if field is not None and field.isdigit() else 0
