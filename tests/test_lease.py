"""A lease: renewed, released once, and honest about being lost."""

import pytest

from headgate.algorithms.decision import Decision, Outcome
from headgate.algorithms.slots import Slots
from headgate.clock import ManualClock
from headgate.engines.memory.slot_table import SlotTable
from headgate.errors import EngineUnavailable
from headgate.lease import AsyncLease, Lease

BASE = 1_700_000_000


class SlotTableMeter:
    """A table of slots by a clock that is turned by hand; `down` makes it unreachable."""

    def __init__(self) -> None:
        self.limit = Slots(1, ttl=30)
        self.clock = ManualClock()
        self.table = SlotTable()
        self.down = False
        self.calls = 0

    def acquire(self) -> Outcome:
        return self.table.acquire("key", self.limit, self.clock.now_us())[0]

    def renew(self, key: str, fence: int) -> int | None:
        self._reach()
        return self.table.renew(key, self.limit, fence, self.clock.now_us())

    def release(self, key: str, fence: int) -> bool:
        self._reach()
        return self.table.release(key, fence, self.clock.now_us())

    def free(self) -> int:
        return self.table.peek("key", self.limit, self.clock.now_us())[1]

    def _reach(self) -> None:
        self.calls += 1
        if self.down:
            raise EngineUnavailable("nobody answers")


class AsyncSlotTableMeter:
    def __init__(self, meter: SlotTableMeter) -> None:
        self.meter = meter

    async def renew(self, key: str, fence: int) -> int | None:
        return self.meter.renew(key, fence)

    async def release(self, key: str, fence: int) -> bool:
        return self.meter.release(key, fence)


@pytest.fixture
def meter() -> SlotTableMeter:
    return SlotTableMeter()


@pytest.fixture
def lease(meter: SlotTableMeter) -> Lease:
    return Lease(meter, "key", Decision(meter.acquire(), meter, "key", 1))


@pytest.fixture
def awaited(meter: SlotTableMeter) -> AsyncLease:
    return AsyncLease(AsyncSlotTableMeter(meter), "key", Decision(meter.acquire(), meter, "key", 1))


def test_it_tells_what_it_is(lease: Lease) -> None:
    assert lease
    assert lease.key == "key"
    assert lease.fence == BASE * 1_000_000
    assert lease.expires_at == BASE + 30
    assert lease.decision.allowed
    assert repr(lease) == "<Lease 1700000000000000 on 'key', until 1700000030.000>"


def test_renewing_holds_it_for_another_ttl(lease: Lease, meter: SlotTableMeter) -> None:
    meter.clock.advance(20)
    assert lease.renew()
    assert lease.expires_at == BASE + 50


def test_it_is_released_once(lease: Lease, meter: SlotTableMeter) -> None:
    assert lease.release()
    assert meter.free() == 1
    assert not lease
    assert not lease.release()
    assert not lease.renew()
    assert meter.calls == 1
    assert repr(lease).endswith("gone>")


def test_one_that_expired_says_so_and_takes_nothing_from_its_successor(
    lease: Lease, meter: SlotTableMeter
) -> None:
    meter.clock.advance(30)
    assert meter.acquire()[0]
    assert not lease.renew()
    assert not lease
    assert not lease.release()
    assert meter.free() == 0


def test_releasing_one_that_expired_unnoticed(lease: Lease, meter: SlotTableMeter) -> None:
    meter.clock.advance(30)
    assert meter.acquire()[0]
    assert lease
    assert not lease.release()
    assert not lease
    assert meter.free() == 0


def test_a_with_statement_releases_it(lease: Lease, meter: SlotTableMeter) -> None:
    with lease as held:
        assert held is lease
        assert meter.free() == 0
    assert meter.free() == 1


def test_a_with_statement_releases_it_whatever_happens(lease: Lease, meter: SlotTableMeter) -> None:
    with pytest.raises(KeyError), lease:
        raise KeyError
    assert meter.free() == 1


def test_released_inside_it_is_not_released_again(lease: Lease, meter: SlotTableMeter) -> None:
    with lease:
        lease.release()
    assert meter.calls == 1


def test_a_release_that_fails_is_raised_and_can_be_repeated(lease: Lease, meter: SlotTableMeter) -> None:
    meter.down = True
    with pytest.raises(EngineUnavailable), lease:
        pass
    assert lease
    meter.down = False
    assert lease.release()


def test_a_release_that_fails_does_not_hide_what_the_work_raised(lease: Lease, meter: SlotTableMeter) -> None:
    meter.down = True
    with pytest.raises(KeyError) as raised, lease:
        raise KeyError
    assert raised.value.__notes__ == ["The slot of 'key' could not be released (nobody answers) and will expire."]


def test_there_is_no_lease_without_a_slot(lease: Lease, meter: SlotTableMeter) -> None:
    with pytest.raises(TypeError, match="refused by 1 slots"):
        Lease(meter, "key", Decision(meter.acquire(), meter, "key", 1))


async def test_awaited_it_is_the_same(awaited: AsyncLease, meter: SlotTableMeter) -> None:
    meter.clock.advance(20)
    assert await awaited.renew()
    assert awaited.expires_at == BASE + 50
    async with awaited as held:
        assert held is awaited
        assert meter.free() == 0
    assert meter.free() == 1
    assert not await awaited.release()
    assert not await awaited.renew()


async def test_awaited_a_failed_release_is_raised_unless_the_work_raised(
    awaited: AsyncLease, meter: SlotTableMeter
) -> None:
    meter.down = True
    with pytest.raises(EngineUnavailable):
        async with awaited:
            pass
    with pytest.raises(KeyError) as raised:
        async with awaited:
            raise KeyError
    assert "will expire" in raised.value.__notes__[0]
