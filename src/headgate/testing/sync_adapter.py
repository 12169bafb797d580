"""Wraps an async engine for blocking calls, on its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Iterator, Sequence
from typing import Any, TypeVar, cast

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.quota_grants import QuotaGrant
from headgate.algorithms.slots import Slots
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.port import AsyncEngine, AsyncLedger, AsyncMeter, AsyncOverrides, AsyncSlotMeter, Meter, Slot
from headgate.engines.stack import EngineLayer

T = TypeVar("T")


class SyncAdapter(EngineLayer):
    """The sync port over an async engine, for tests; close it to end its loop.

    >>> engine = SyncAdapter(open_async_engine("memory://"))
    >>> Limiter("3/s", engine).take("ann").allowed, engine.close()
    (True, None)
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.inner: AsyncEngine = engine
        self.engine: AsyncEngine = engine
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop of this engine."""
        return self._runner.run(coroutine)

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> SyncMeter:
        """Binds a limit."""
        return SyncMeter(self, self.engine.meter(limit, name, options))

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> SyncSlotMeter:
        """Binds a limit of slots."""
        return SyncSlotMeter(self, self.engine.slots(limit, name, options))

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        """Decides several charges together."""
        inner = [(cast(SyncMeter, meter).meter, key, cost) for meter, key, cost in charges]
        return self.run(self.engine.decide_all(inner, patience_us, commit))

    def overrides(self, rule: str) -> SyncOverrides:
        """Gives access to the overrides of a rule."""
        return SyncOverrides(self, self.engine.overrides(rule))

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> SyncLedger:
        """Gives access to the quota grants of a limit."""
        return SyncLedger(self, self.engine.quota_ledger(limit, name, ttl_us, grace_us))

    def guarantees(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        """Adds nothing to what the engine guarantees."""
        yield from ()

    def shard(self, key: str) -> Hashable:
        """Names the part of the engine that answers for a key."""
        return self.engine.shard(key)

    def close(self) -> None:
        """Closes the engine, and ends its loop."""
        self.run(self.engine.close())
        self._runner.close()


class SyncMeter:
    def __init__(self, engine: SyncAdapter, meter: AsyncMeter) -> None:
        self._run = engine.run
        self.meter = meter
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options: ChargeOptions | None = meter.options

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        return self._run(self._decide(key, cost, patience_us))

    async def _decide(self, key: str, cost: int, patience_us: int | None) -> Outcome:
        return await self.meter.decide(key, cost, patience_us)

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return self._run(self.meter.refund(key, units, receipt, cancel))

    def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        return self._run(self.meter.surcharge(key, units, receipt))

    def retune(self, key: str) -> None:
        self._run(self.meter.retune(key))

    def pause(self, key: str, duration_us: int) -> int:
        return self._run(self.meter.pause(key, duration_us))

    def reset(self, key: str) -> None:
        self._run(self.meter.reset(key))


class SyncOverrides:
    def __init__(self, engine: SyncAdapter, overrides: AsyncOverrides) -> None:
        self._run = engine.run
        self.overrides = overrides

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        return self._run(self.overrides.set(key, limits, absent=absent, ttl=ttl))

    def get(self, key: str) -> str | None:
        return self._run(self.overrides.get(key))

    def unset(self, key: str) -> bool:
        return self._run(self.overrides.unset(key))

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        return iter(self._run(self._all(limit)))

    async def _all(self, limit: int | None) -> Sequence[tuple[str, str]]:
        return [entry async for entry in self.overrides.list(limit)]


class SyncLedger:
    def __init__(self, engine: SyncAdapter, ledger: AsyncLedger) -> None:
        self._run = engine.run
        self.ledger = ledger
        self.limit: Limit = ledger.limit
        self.name: str = ledger.name

    def grant(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> QuotaGrant | None:
        return self._run(self.ledger.grant(key, holder, wanted, within_us))

    def leave(self, key: str, holder: str) -> None:
        self._run(self.ledger.leave(key, holder))


class SyncSlotMeter:
    def __init__(self, engine: SyncAdapter, meter: AsyncSlotMeter) -> None:
        self._run = engine.run
        self.meter = meter
        self.limit: Limit = meter.limit
        self.name: str = meter.name

    def free(self, key: str) -> Outcome:
        return self._run(self.meter.free(key))

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return self._run(self.meter.acquire(key, ticket, wait))

    def renew(self, key: str, fence: int) -> int | None:
        return self._run(self.meter.renew(key, fence))

    def release(self, key: str, fence: int) -> bool:
        return self._run(self.meter.release(key, fence))

    def leave(self, key: str, ticket: int) -> None:
        self._run(self.meter.leave(key, ticket))

    def pause(self, key: str, duration_us: int) -> int:
        return self._run(self.meter.pause(key, duration_us))

    def reset(self, key: str) -> None:
        self._run(self.meter.reset(key))
