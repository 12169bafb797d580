"""A full shared dict: keys with a count keep it, all others share one, and no request passes uncounted."""

from collections.abc import Iterator

import pytest

from headgate.algorithms.limit import SECOND
from headgate.algorithms.lockout import Lockout
from headgate.algorithms.slots import Slots
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.memory.engine import MemoryEngine
from headgate.limit_syntax import parse
from tests.nginx.engines.shared.shared_harness import SharedDictError, SharedDictMeter, SharedDictNginx
from tests.nginx.engines.shared.test_parity import wire
from tests.servers import BASE_US, DrivenClock

TEXTS = (
    *("5/minute", "7/minute", "5/minute fixed", "5/minute sliding", "5/minute log"),
    *("5/minute queue 4", "5/minute smooth"),
)
ALL = 10**6
THREE = SharedDictMeter(parse("3/minute"), "three")


@pytest.fixture
def small() -> Iterator[SharedDictNginx]:
    with DrivenClock(BASE_US) as clock, SharedDictNginx(driven=clock, size="512k") as nginx:
        yield nginx


def fill(nginx: SharedDictNginx, most: int = ALL, ttl: float = 0, name: str = "x") -> int:
    return int(nginx.call_driver("fill", most=most, ttl=ttl, name=name))


def test_new_keys_share_one_count(small: SharedDictNginx) -> None:
    small.use(THREE)
    assert small.take(THREE, "old").remaining == 2
    fill(small)
    taken = [small.take(THREE, f"new{number}") for number in range(5)]
    assert [(outcome.allowed, outcome.remaining, outcome.overflow) for outcome in taken] == [
        *((1, 2, True), (1, 1, True), (1, 0, True), (0, 0, True), (0, 0, True))
    ]
    assert [small.take(THREE, "old").remaining for _ in range(2)] == [1, 0]
    assert small.take(THREE, "old")[:2] == (0, 0)
    assert not small.take(THREE, "old").overflow
    assert small.refund(THREE, "new0", 1, taken[0]).remaining == 1
    assert small.take(THREE, "new9").allowed == 1


def test_overflow_is_logged_once_in_ten_seconds(small: SharedDictNginx) -> None:
    small.use(THREE)
    fill(small)
    for second in (0, 1, 9, 10, 11):
        small.at(BASE_US + second * SECOND)
        assert small.take(THREE, "new").overflow
    warnings = [line for line in small.nginx.log.splitlines() if "the shared dict is full" in line]
    assert ["new keys are counted together, as chg2:tb:three:{overflow}" in line for line in warnings] == [
        True,
        True,
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_a_count_is_kept_as_ever(text: str, small: SharedDictNginx) -> None:
    """In a full dict a state is written in place, whatever it says; and so is the count that is shared."""
    clock = ManualClock(BASE_US)
    local = MemoryEngine(clock)
    bound, meter = SharedDictMeter(parse(text), "kept"), local.meter(parse(text), "kept")
    small.use(bound)
    assert small.take(bound, "old") == wire(meter.decide("old", 1))
    fill(small)
    for number in range(60):
        clock.set_us(BASE_US + number * 2_345_000)
        small.at(clock.now_us())
        assert small.take(bound, "old") == wire(meter.decide("old", 1)), number
        assert small.take(bound, f"new{number}") == wire(meter.decide("overflow", 1))._replace(overflow=True), (
            number
        )


def test_a_log_that_cannot_grow_keeps_what_it_has(small: SharedDictNginx) -> None:
    bound = SharedDictMeter(parse("100/minute log"), "log")
    small.use(bound)
    small.take(bound, "old", 10)
    fill(small)
    assert small.take(bound, "old", 50)[1:2] == (50,)
    assert small.take(bound, "old", 50).overflow
    assert small.take(bound, "old", 50)[:2] == (0, 0)
    outcome = small.take(bound, "old", 0)
    assert (outcome.remaining, outcome.overflow) == (90, False)


@pytest.mark.parametrize("text", ["12/minute fixed", "7/minute burst 12", "12/minute sliding", "12/minute smooth"])
def test_a_state_of_more_digits_finds_room(text: str, small: SharedDictNginx) -> None:
    """Some of these names are so long that one digit more would be too much for where they lie."""
    clock = ManualClock(BASE_US)
    bound, meter = SharedDictMeter(parse(text), "digits"), MemoryEngine(clock).meter(parse(text), "digits")
    keys = ["x" * length for length in range(60)]
    small.use(bound)
    for key in keys:
        assert small.take(bound, key) == wire(meter.decide(key, 1))
    fill(small)
    for second, cost in ((5, 9), (7, 1), (30, 4), (59, 1)):
        clock.set_us(BASE_US + second * SECOND + 789_000)
        small.at(clock.now_us())
        for key in keys:
            assert small.take(bound, key, cost) == wire(meter.decide(key, cost)), (len(key), second)


def test_a_log_that_gets_shorter_keeps_its_room(small: SharedDictNginx) -> None:
    bound = SharedDictMeter(parse("40/minute log"), "short")
    small.use(bound)
    small.take(bound, "old", 20)
    small.at(BASE_US + 30 * SECOND)
    small.take(bound, "old")
    fill(small)
    small.at(BASE_US + 61 * SECOND)
    outcome = small.take(bound, "old")
    assert (outcome.remaining, outcome.overflow) == (38, False)


def test_leases_that_cannot_grow_stay(small: SharedDictNginx) -> None:
    bound = SharedDictMeter(Slots(40, 30), "leases")
    small.use(bound)
    fences = [small.acquire(bound).mark for _ in range(6)]
    fill(small)
    assert small.acquire(bound).overflow
    assert [small.release(bound, fence) for fence in fences] == [True] * 6
    outcome = small.acquire(bound)
    assert (outcome.remaining, outcome.overflow) == (39, False)


def test_expired_entries_are_evicted(small: SharedDictNginx) -> None:
    """Behind entries that live, nginx itself would not look for those that are dead."""
    small.use(THREE)
    fill(small, most=20, name="lives")
    fill(small, ttl=30, name="dies")
    assert small.take(THREE, "new").overflow
    small.at(BASE_US + 31 * SECOND)
    assert not small.take(THREE, "new").overflow


def test_it_is_not_swept_all_the_time(small: SharedDictNginx) -> None:
    """A tenth of a second must pass between two sweeps: the second finds no room, though there could be some."""
    small.use(THREE)
    fill(small, most=20, name="lives")
    fill(small, ttl=30, name="dies")
    small.at(BASE_US + 29 * SECOND + 950_000)
    assert small.take(THREE, "new").overflow
    small.at(BASE_US + 30 * SECOND + 10_000)
    assert small.take(THREE, "new").overflow
    small.at(BASE_US + 30 * SECOND + 60_000)
    assert not small.take(THREE, "new").overflow


def test_all_or_none_holds_without_room(small: SharedDictNginx) -> None:
    """The first was saved before the second found no room: it is charged once, or not at all."""
    nine = SharedDictMeter(parse("9/minute"), "nine")
    small.use(THREE, nine)
    assert small.take(nine, "old").remaining == 8
    fill(small)
    for left in (7, 6, 5):
        first, second = small.decide([(nine, "old", 1), (THREE, "new", 1)])
        assert (first.allowed, first.remaining, first.overflow) == (1, left, False)
        assert (second.allowed, second.overflow) == (1, True)
    first, second = small.decide([(nine, "old", 1), (THREE, "new", 1)])
    assert (first.allowed, first.remaining, second.allowed) == (1, 5, 0)
    assert small.take(nine, "old", 0).remaining == 5


def test_a_lockout_without_room_locks_nobody_out(small: SharedDictNginx) -> None:
    login = SharedDictMeter(
        parse("1/minute"), "login", ChargeOptions("login", lockout=Lockout(2, 60 * SECOND, 60 * SECOND))
    )
    small.use(login)
    small.take(login, "old")
    small.take(login, "old")
    fill(small)
    assert [small.take(login, "old").allowed for _ in range(2)] == [-3, -3]
    assert [small.take(login, "new").allowed for _ in range(4)] == [1, 0, 0, 0]


def test_slots_without_room_are_shared(small: SharedDictNginx) -> None:
    bound = SharedDictMeter(Slots(2, 30), "slots")
    small.use(bound)
    old = small.acquire(bound, "old")
    fill(small)
    first, second, third = (small.acquire(bound, f"new{number}") for number in range(3))
    assert [(outcome.allowed, outcome.overflow) for outcome in (first, second, third)] == [
        (1, True),
        (1, True),
        (0, True),
    ]
    assert first.mark < 0
    assert small.renew(bound, second.mark, "new1")
    assert small.release(bound, first.mark, "new0")
    assert not small.release(bound, first.mark, "new0")
    assert small.acquire(bound, "new2").allowed == 1
    assert small.release(bound, old.mark, "old")
    assert not small.acquire(bound, "old").overflow


def test_the_shared_count_leaves_a_day_after_its_hand(small: SharedDictNginx) -> None:
    four = SharedDictMeter(parse("4/minute"), "four")
    small.use(THREE, four)
    small.use(THREE)
    small.use(THREE, four)
    small.use(four)
    small.at(BASE_US + 86_399 * SECOND)
    assert len(small.names()) == 2
    small.at(BASE_US + 86_402 * SECOND)
    assert small.names() == ["chg2:tb:four:{overflow}"]


def test_a_dict_without_room_for_anything_gives_no_answer(small: SharedDictNginx) -> None:
    """Not even for the count that is shared: its bound came when the dict was full already."""
    fill(small)
    with pytest.raises(
        SharedDictError, match=r"^wrong The shared dict is full, and even chg2:tb:three:\{overflow} has no room"
    ):
        small.take(THREE, "new")


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("1000/day log", True),
        ("1001/day log", False),
        ("1000 slots", True),
        ("1001 slots", False),
        ("9999/s", True),
    ],
)
def test_a_limit_too_large_for_the_dict_is_refused(text: str, fine: bool, small: SharedDictNginx) -> None:
    limit = SharedDictMeter(parse(text), text).fields["limit"]
    message = small.call_driver("refuses", limit={**limit, "text": text})
    assert (message == "fine") == fine
    each = "a lease" if "slots" in text else "an instant"
    assert fine or message == (
        f"{text} would keep {each} for each of 1001 units; on a shared dict every decision copies them, "
        "so there may be at most 1000. Count it in Redis, or by another algorithm."
    )
