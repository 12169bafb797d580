"""An in-memory engine that fails on command, as one member sees it over its own connection.

down    nobody is there: nothing is decided
deaf    the engine decides, and the answer is lost
"""

from collections.abc import Callable, Sequence
from typing import Any

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.layers.fallback.shard import Shard
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import Meter
from headgate.engines.stack import InnermostEngine
from headgate.errors import EngineUnavailable


class FaultyMeter:
    """A meter of either kind: every verb may fail."""

    def __init__(self, engine: "FaultyEngine", meter: Any) -> None:
        self.meter = meter
        self.limit = meter.limit
        self.name = meter.name
        self.options: ChargeOptions | None = getattr(meter, "options", None)
        self._engine = engine

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self.meter, verb)
        return lambda *words: self._engine.call(words[0], method, *words)


class FaultyEngine(InnermostEngine):
    """Keys fail apart by their first letter, if `parts` says so."""

    def __init__(self, engine: MemoryEngine, parts: bool = False) -> None:
        self.engine = engine
        self.down = False
        self.deaf = False
        self.down_parts: set[object] = set()
        self.calls = 0
        self.closed = False
        self._parts = parts

    def call(self, key: str, verb: Callable[..., Any], *words: Any) -> Any:
        self.calls += 1
        if self.down or self.shard(key) in self.down_parts:
            raise EngineUnavailable("Nobody is there.")
        answer = verb(*words)
        if self.deaf:
            raise EngineUnavailable("The answer was lost.")
        return answer

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> Any:
        return FaultyMeter(self, self.engine.meter(limit, name, options))

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> Any:
        return FaultyMeter(self, self.engine.slots(limit, name, options))

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        inner = [(meter.meter, key, cost) for meter, key, cost in charges if isinstance(meter, FaultyMeter)]
        answers = [self.call(key, lambda _: None, key) for _, key, _ in inner[1:]]
        assert not any(answers)
        decided: list[Outcome] = self.call(
            inner[0][1], lambda _: self.engine.decide_all(inner, patience_us, commit), inner[0][1]
        )
        return decided

    def overrides(self, rule: str) -> Any:
        return self.engine.overrides(rule)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Any:
        return FaultyMeter(self, self.engine.quota_ledger(limit, name, ttl_us, grace_us))

    def shard(self, key: str) -> object:
        return key[0] if self._parts else 0

    def close(self) -> None:
        self.closed = True


class ImmediateFallback(FallbackEngine):
    """A fallback whose background is now."""

    def settle_in_background(self, shard: Shard) -> None:
        self.settle_shard(shard)


def faulty_memory_engine(clock: ManualClock, parts: bool = False) -> FaultyEngine:
    return FaultyEngine(MemoryEngine(clock), parts)
