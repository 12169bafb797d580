"""The store of recent records: a bounded sample of each second, of all processes. All its keys lie in one slot.

    hg2:{recent}:<second>:r     records of refusals
    hg2:{recent}:<second>:p     records of calls that passed
    hg2:{recent}:<second>:b     how many bytes both have

A write is one script (lua/commands/recent_records.lua). Records are bytes here; headgate.telemetry.recent_records
makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.engines.redis import keys
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.engines.redis.script_assembly import standalone_script
from headgate.engines.redis.sync_engine import RedisEngine

READ_SIZE = 100  # seconds that are read by one request

_TAG = b"recent"


class RedisRecentRecordsStore:
    """Recent records, read and written through an engine of its own."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self.text: str = engine.topology.text
        self._head = keys.recent_head(engine.prefix)

    def packed_write(
        self,
        second: int,
        refusals: Sequence[bytes],
        passes: Sequence[bytes],
        max_records: int,
        max_bytes: int,
        ttl_s: int,
    ) -> RedisRequest:
        """Packs a write of one second's records: a single command, which others may share a pipeline with."""
        script = standalone_script("recent_records")
        key_args = [self._key(second, kind) for kind in (b"r", b"p", b"b")]
        args: list[bytes | str | int] = ["write", max_records, max_bytes, ttl_s, len(refusals), *refusals, *passes]
        return RedisRequest(command("EVALSHA", script.sha, 3, *key_args, *args), script, _TAG)

    def send(self, request: RedisRequest) -> int:
        """Sends a packed write; returns how many records were stored."""
        return int(self._engine.execute(request))

    def read(self, seconds: Sequence[int], kinds: Sequence[str]) -> list[bytes]:
        """Returns the records of these seconds: "r" refusals, "p" calls that passed."""
        script, records = standalone_script("recent_records"), []
        wanted = [self._key(second, kind.encode()) for second in seconds for kind in kinds]
        for start in range(0, len(wanted), READ_SIZE):
            part = wanted[start : start + READ_SIZE]
            packed = command("EVALSHA", script.sha, len(part), *part, "read")
            for listed in self._engine.execute(RedisRequest(packed, script, _TAG)):
                records += listed
        return records

    def close(self) -> None:
        """Closes the connections."""
        self._engine.close()

    def _key(self, second: int, kind: bytes) -> bytes:
        return b"%b%d:%b" % (self._head, second, kind)
