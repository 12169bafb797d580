"""The store of adaptive limits that processes agree on: one hash, written and read by one request.

    hg2:{adaptive}      the limits of each process, until they are dead

Limits are bytes here; headgate.enforcement.adaptive_agreement makes them.
"""

from __future__ import annotations

from headgate.engines.redis import keys
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.engines.redis.script_assembly import standalone_script
from headgate.engines.redis.sync_engine import RedisEngine

MAX_PROCESSES = 1000  # whose limits are stored; of more, the others go by those

_TAG = b"adaptive"


class RedisAdaptiveLimitsStore:
    """Adaptive limits of all processes, exchanged through an engine of its own."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self.text: str = engine.topology.text
        self._key = keys.adaptive_limits_key(engine.prefix)

    def exchange(self, process: str, ttl_us: int, limits: bytes) -> list[bytes]:
        """Stores the limits of this process; returns those of all live processes, with its own."""
        script = standalone_script("adaptive_limits")
        packed = command("EVALSHA", script.sha, 1, self._key, process, ttl_us, limits, MAX_PROCESSES)
        reply: list[bytes] = self._engine.execute(RedisRequest(packed, script, _TAG))
        return reply

    def close(self) -> None:
        """Closes the connections."""
        self._engine.close()
