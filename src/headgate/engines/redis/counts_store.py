"""The store of shared counts: adds what processes counted, and reads the sums. All its keys lie in one slot.

    hg2:{counts}:<suffix>

The suffixes, and what they mean, are the business of headgate.telemetry.shared_layout. A write is one script
(lua/commands/write_counts.lua); it has a number, and is done once, even if it is sent again because no reply came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.engines.redis import keys
from headgate.engines.redis.errors import ServerError, denies_key, lacks_right
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.engines.redis.script_assembly import standalone_script
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable

MAX_RULES = 1000  # rules whose counts are stored
READ_SIZE = 200  # keys that are read by one request

# Commands of the scripts, and PFCOUNT, in addition to the rights of a limiter (docs/how-to/redis.md).
WRITE_RIGHTS = "+hget +hset +hincrby +pfadd +zcard +zremrangebyrank +zremrangebyscore +expire"
READ_RIGHTS = "+hgetall +pfcount"

_TAG = b"counts"

Argument = str | bytes | int


class MissingRights(EngineUnavailable):
    """The user of the server may not write or read counts."""


class CountsPart(NamedTuple):
    """An addition to one key: a hash ("h"), a HyperLogLog ("p") or a sorted set ("z")."""

    suffix: str
    ttl_s: int
    kind: str
    arguments: Sequence[Argument]


class RedisCountsStore:
    """Shared counts, read and written through an engine of its own."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self.text: str = engine.topology.text
        self._head = keys.counts_head(engine.prefix)

    def packed_write(
        self,
        writer: str,
        number: int,
        now_s: int,
        name: str,
        remembered_s: int,
        rules: Sequence[tuple[str, Sequence[CountsPart]]],
    ) -> RedisRequest:
        """Packs a write of counts by rule. It may be sent several times, and is done once."""
        script = standalone_script("write_counts")
        key_args = [self._key(suffix) for suffix in (f"w:{writer}", "rules", "writers")]
        args: list[Argument] = [number, now_s, name, MAX_RULES, remembered_s]
        for rule, parts in rules:
            args += [_encoded(rule), len(parts)]
            for part in parts:
                key_args.append(self._key(part.suffix))
                args += [len(key_args), part.ttl_s, part.kind, len(part.arguments)]
                args += [_encoded(each) if isinstance(each, str) else each for each in part.arguments]
        packed = command("EVALSHA", script.sha, len(key_args), *key_args, *args)
        return RedisRequest(packed, script, _TAG)

    def send(self, request: RedisRequest) -> int:
        """Sends a packed write; returns how many rules were left out, or -1 if it was done before."""
        return int(self._execute(request, WRITE_RIGHTS))

    def hashes(self, suffixes: Sequence[str]) -> list[dict[str, int]]:
        """Returns the numbers in each hash; an empty one where there is none."""
        return [
            {_decoded(field): int(value) for field, value in _pairs(reply)}
            for reply in self._read([(suffix, "h") for suffix in suffixes])
        ]

    def texts(self, suffixes: Sequence[str]) -> list[dict[str, str]]:
        """Returns the texts in each hash; an empty one where there is none."""
        return [
            {_decoded(field): _decoded(value) for field, value in _pairs(reply)}
            for reply in self._read([(suffix, "h") for suffix in suffixes])
        ]

    def highest(self, suffixes: Sequence[str], number: int) -> list[list[tuple[str, int]]]:
        """Returns the members of each sorted set with the highest scores."""
        return [
            [(_decoded(member), int(float(score))) for member, score in _pairs(reply)]
            for reply in self._read([(suffix, str(number)) for suffix in suffixes])
        ]

    def distinct(self, suffixes: Sequence[str]) -> int:
        """Returns about how many different elements were added to any of these HyperLogLogs."""
        packed = command("PFCOUNT", *[self._key(suffix) for suffix in suffixes])
        return int(self._execute(RedisRequest(packed, None, _TAG), READ_RIGHTS))

    def close(self) -> None:
        """Closes the connections."""
        self._engine.close()

    def _key(self, suffix: str) -> bytes:
        return self._head + _encoded(suffix)

    def _read(self, wanted: Sequence[tuple[str, str]]) -> list[list[bytes]]:
        script, replies = standalone_script("read_counts"), []
        for start in range(0, len(wanted), READ_SIZE):
            part = wanted[start : start + READ_SIZE]
            args = [self._key(suffix) for suffix, _ in part] + [kind.encode() for _, kind in part]
            packed = command("EVALSHA", script.sha, len(part), *args)
            replies += self._execute(RedisRequest(packed, script, _TAG), READ_RIGHTS)
        return replies

    def _execute(self, request: RedisRequest, rights: str) -> Any:
        try:
            return self._engine.execute(request)
        except EngineUnavailable as error:
            cause = error.__cause__
            if not isinstance(cause, ServerError) or not lacks_right(cause):
                raise
            if denies_key(cause):
                rights = f"~{self._engine.prefix}{keys.LAYOUT}:*"
            raise MissingRights(
                f"Redis at {self.text} refused a command for counts: its user lacks a right ({cause}). "
                f"Grant these: ACL SETUSER <user> {rights}"
            ) from cause


def _pairs(reply: list[bytes]) -> Sequence[tuple[bytes, bytes]]:
    return list(zip(reply[::2], reply[1::2], strict=True))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
