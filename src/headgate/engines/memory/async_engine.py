"""The in-memory engine for an event loop: it never blocks, so its methods are coroutines that return at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterator, Sequence

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.quota_grants import QuotaGrant
from headgate.algorithms.slots import Slots
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.port import AsyncMeter, Engine, Ledger, Meter, Overrides, Slot, SlotMeter
from headgate.engines.stack import InnermostEngine
from headgate.errors import InvalidCharge


class AsyncMemoryMeter:
    """A Meter of the in-memory engine, with coroutines."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options: ChargeOptions | None = meter.options

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        return self.meter.decide(key, cost, patience_us)

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return self.meter.refund(key, units, receipt, cancel)

    async def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        return self.meter.surcharge(key, units, receipt)

    async def retune(self, key: str) -> None:
        self.meter.retune(key)

    async def pause(self, key: str, duration_us: int) -> int:
        return self.meter.pause(key, duration_us)

    async def reset(self, key: str) -> None:
        self.meter.reset(key)


class AsyncMemorySlotMeter:
    """A SlotMeter of the in-memory engine, with coroutines."""

    def __init__(self, meter: SlotMeter) -> None:
        self.meter = meter
        self.limit: Limit = meter.limit
        self.name: str = meter.name

    async def free(self, key: str) -> Outcome:
        return self.meter.free(key)

    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return self.meter.acquire(key, ticket, wait)

    async def renew(self, key: str, fence: int) -> int | None:
        return self.meter.renew(key, fence)

    async def release(self, key: str, fence: int) -> bool:
        return self.meter.release(key, fence)

    async def leave(self, key: str, ticket: int) -> None:
        self.meter.leave(key, ticket)

    async def pause(self, key: str, duration_us: int) -> int:
        return self.meter.pause(key, duration_us)

    async def reset(self, key: str) -> None:
        self.meter.reset(key)


class AsyncMemoryOverrides:
    """Overrides of the in-memory engine, with coroutines."""

    def __init__(self, overrides: Overrides) -> None:
        self.overrides = overrides

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        return self.overrides.set(key, limits, absent=absent, ttl=ttl)

    async def get(self, key: str) -> str | None:
        return self.overrides.get(key)

    async def unset(self, key: str) -> bool:
        return self.overrides.unset(key)

    async def list(self, limit: int | None = None) -> AsyncIterator[tuple[str, str]]:
        for entry in self.overrides.list(limit):
            yield entry


class AsyncMemoryLedger:
    """A quota ledger of the in-memory engine, with coroutines."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.limit: Limit = ledger.limit
        self.name: str = ledger.name

    async def grant(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> QuotaGrant | None:
        return self.ledger.grant(key, holder, wanted, within_us)

    async def leave(self, key: str, holder: str) -> None:
        self.ledger.leave(key, holder)


class AsyncMemoryEngine(InnermostEngine):
    """The in-memory engine, with coroutines."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncMemoryMeter:
        return AsyncMemoryMeter(self.engine.meter(limit, name, options))

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> AsyncMemorySlotMeter:
        return AsyncMemorySlotMeter(self.engine.slots(limit, name, options))

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        sync_charges = [(_sync_meter(meter), key, cost) for meter, key, cost in charges]
        return self.engine.decide_all(sync_charges, patience_us, commit)

    def overrides(self, rule: str) -> AsyncMemoryOverrides:
        return AsyncMemoryOverrides(self.engine.overrides(rule))

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> AsyncMemoryLedger:
        return AsyncMemoryLedger(self.engine.quota_ledger(limit, name, ttl_us, grace_us))

    def shard(self, key: str) -> Hashable:
        return self.engine.shard(key)

    def guarantees(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        return self.engine.guarantees(limit, nodes)

    async def close(self) -> None:
        self.engine.close()


def _sync_meter(meter: AsyncMeter) -> Meter:
    """Returns the wrapped meter; raises InvalidCharge if it belongs to another engine."""
    if not isinstance(meter, AsyncMemoryMeter):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter.meter
