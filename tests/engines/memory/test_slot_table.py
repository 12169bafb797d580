"""The table of slots in memory: every story, and a machine that tries to break its laws."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import MAX_CLOCK_SWING_US
from headgate.algorithms.slots import TICKET_US, Slots
from headgate.engines.memory.slot_table import SlotTable
from tests.engines.slot_harness import BASE_US, SECOND, SlotHarness
from tests.engines.slot_stories import Story, stories


class TableKeeper:
    """One key of a table, and a clock turned by hand."""

    def __init__(self) -> None:
        self.table = SlotTable()
        self.now_us = BASE_US

    def set_us(self, now_us: int) -> None:
        self.now_us = now_us

    def acquire(self, limit: Slots, ticket: int | None, wait: bool) -> tuple[Outcome, int | None]:
        return self.table.acquire("key", limit, self.now_us, ticket, wait)

    def renew(self, limit: Slots, fence: int) -> int | None:
        return self.table.renew("key", limit, fence, self.now_us)

    def release(self, limit: Slots, fence: int) -> bool:
        return self.table.release("key", fence, self.now_us)

    def leave(self, limit: Slots, ticket: int) -> bool:
        return self.table.leave("key", ticket)

    def peek(self, limit: Slots) -> Outcome:
        return self.table.peek("key", limit, self.now_us)

    def forgotten(self) -> bool:
        self.table.sweep(self.now_us)
        return len(self.table) == 0


@pytest.mark.parametrize("run_story", stories, ids=lambda run_story: run_story.__name__)
def test_story(run_story: Story) -> None:
    run_story(SlotHarness(TableKeeper()))


def test_a_key_outlives_a_clock_that_swings_at_its_end() -> None:
    """The clock reads 20 ms after the end of a lease, when another key comes, and then 30 ms before it."""
    table, limit = SlotTable(), Slots(1, ttl=1)
    (granted, *_, fence), _ = table.acquire("a", limit, BASE_US)
    assert granted
    table.acquire("b", limit, BASE_US + 1_020_000)
    (granted, *_), _ = table.acquire("a", limit, BASE_US + 970_000)
    assert not granted
    assert table.renew("a", limit, fence, BASE_US + 970_000)


def test_keys_do_not_meet() -> None:
    table, limit = SlotTable(), Slots(1)
    (granted, *_), _ = table.acquire("a", limit, BASE_US)
    (other, *_), _ = table.acquire("b", limit, BASE_US)
    (again, *_), _ = table.acquire("a", limit, BASE_US)
    assert (granted, other, again) == (True, True, False)


def test_a_reset_ends_every_lease_but_repeats_no_fence() -> None:
    table, limit = SlotTable(), Slots(1)
    (*_, fence), _ = table.acquire("a", limit, BASE_US)
    _, ticket = table.acquire("a", limit, BASE_US, wait=True)
    table.reset("a")
    table.reset("never seen")
    assert table.renew("a", limit, fence, BASE_US) is None
    assert ticket is not None
    assert not table.leave("a", ticket)
    (allowed, *_, after), _ = table.acquire("a", limit, BASE_US)
    assert allowed
    assert after > fence


def test_asking_about_a_key_keeps_nothing_of_it() -> None:
    table, limit = SlotTable(), Slots(1)
    table.peek("a", limit, BASE_US)
    table.renew("a", limit, 1, BASE_US)
    table.release("a", 1, BASE_US)
    table.leave("a", 1)
    table.reset("a")
    assert len(table) == 0


def test_dead_keys_go_a_few_at_a_time_as_new_ones_come() -> None:
    table, limit = SlotTable(), Slots(1, ttl=1)
    longest = 0
    for number in range(20_000):
        table.acquire(f"key {number}", limit, BASE_US + number * 1000)
        longest = max(longest, len(table))
    # A thousand arrive within one ttl.
    assert longest <= 2 * 1000


def test_a_sweep_looks_at_a_few_keys_only() -> None:
    table, limit = SlotTable(), Slots(1, ttl=1)
    for number in range(10):
        table.acquire(f"key {number}", limit, BASE_US)
    table.sweep(BASE_US + 60 * SECOND, keys=3)
    assert len(table) == 7


class ReferenceSlots:
    """A plain model of the table: every lease ever granted, and when it ends."""

    def __init__(self) -> None:
        self.leases: dict[int, int] = {}
        self.tickets: dict[int, int] = {}
        self.written_us = 0

    def settle(self, now_us: int) -> int:
        """The instant that all is judged as at: now, unless the clock swings."""
        stepped_us = self.written_us - now_us
        if stepped_us > MAX_CLOCK_SWING_US:
            self.written_us = now_us
            self.leases = {number: end_us - stepped_us for number, end_us in self.leases.items()}
            self.tickets = {number: end_us - stepped_us for number, end_us in self.tickets.items()}
        return max(now_us, self.written_us)

    def held(self, now_us: int) -> list[int]:
        return [number for number, end_us in self.leases.items() if end_us > now_us]

    def line(self, now_us: int) -> list[int]:
        return sorted(number for number, end_us in self.tickets.items() if end_us > now_us)

    def opens_us(self, amount: int, now_us: int) -> int:
        """The first instant at which a newcomer would pass if nothing else came."""
        instants = [now_us, *self.leases.values(), *self.tickets.values()]
        return min(
            at_us
            for at_us in instants
            if at_us >= now_us and len(self.held(at_us)) + len(self.line(at_us)) < amount
        )


class SlotMachine(RuleBasedStateMachine):
    """Anything in any order, while the clock goes both ways and the limit changes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable()
        self.truth = ReferenceSlots()
        self.limit = Slots(2)
        self.now_us = BASE_US
        self.highest = 0
        self.fences = [BASE_US]
        self.tickets = [BASE_US]

    @rule(by_us=st.sampled_from([0, 1, 600_000, TICKET_US - 1, TICKET_US, 2 * SECOND, 31 * SECOND]))
    def time_passes(self, by_us: int) -> None:
        self.now_us += by_us

    @rule(by_us=st.sampled_from([1, 99_999, 100_000, 100_001, 500_000, 3600 * SECOND]))
    def the_clock_steps_back(self, by_us: int) -> None:
        self.now_us -= by_us

    @rule(amount=st.integers(1, 4), ttl=st.sampled_from([0.5, 2, 30]))
    def the_limit_changes(self, amount: int, ttl: float) -> None:
        self.limit = Slots(amount, ttl)

    @rule(wait=st.booleans())
    def a_newcomer_asks(self, wait: bool) -> None:
        self.acquire_slot(None, wait)

    @rule(nth=st.integers(0, 50), wait=st.booleans())
    def a_waiter_asks_again(self, nth: int, wait: bool) -> None:
        self.acquire_slot(self.tickets[nth % len(self.tickets)], wait)

    @rule(nth=st.integers(0, 50))
    def a_holder_renews(self, nth: int) -> None:
        fence = self.fences[nth % len(self.fences)]
        at_us = self.truth.settle(self.now_us)
        expires_us = self.table.renew("key", self.limit, fence, self.now_us)
        if fence in self.truth.held(at_us):
            assert expires_us == at_us + self.limit.ttl_us
            self.truth.leases[fence] = expires_us
            self.truth.written_us = at_us
        else:
            assert expires_us is None

    @rule(nth=st.integers(0, 50))
    def a_holder_releases(self, nth: int) -> None:
        fence = self.fences[nth % len(self.fences)]
        held = fence in self.truth.held(self.truth.settle(self.now_us))
        assert self.table.release("key", fence, self.now_us) == held
        if held:
            del self.truth.leases[fence]

    @rule(nth=st.integers(0, 50))
    def a_waiter_leaves(self, nth: int) -> None:
        ticket = self.tickets[nth % len(self.tickets)]
        there = self.table.leave("key", ticket)
        assert there or ticket not in self.truth.line(max(self.now_us, self.truth.written_us))
        self.truth.tickets.pop(ticket, None)

    @rule()
    def somebody_looks(self) -> None:
        at_us = self.truth.settle(self.now_us)
        free = self.limit.amount - len(self.truth.held(at_us)) - len(self.truth.line(at_us))
        allowed, remaining, retry_us, *_ = self.table.peek("key", self.limit, self.now_us)
        assert (allowed, remaining) == (free > 0, max(0, free))
        assert retry_us == (0 if allowed else self.truth.opens_us(self.limit.amount, at_us) - self.now_us)

    @rule()
    def the_table_sweeps(self) -> None:
        self.table.sweep(self.now_us)

    @invariant()
    def what_is_forgotten_was_dead(self) -> None:
        if not len(self.table):
            at_us = max(self.now_us, self.truth.written_us)
            assert self.truth.held(at_us) + self.truth.line(at_us) == []
            self.truth = ReferenceSlots()

    def acquire_slot(self, ticket: int | None, wait: bool) -> None:
        now_us, amount, truth = self.now_us, self.limit.amount, self.truth
        moment_us = truth.settle(now_us)
        line = truth.line(moment_us)
        mine = ticket if ticket in line else None
        ahead = len(truth.held(moment_us)) + (len(line) if mine is None else line.index(mine))
        if mine is not None:
            del truth.tickets[mine]
        free = amount - len(truth.held(moment_us)) - len(truth.line(moment_us))
        opens_us = truth.opens_us(amount, moment_us)

        outcome, given = self.table.acquire("key", self.limit, now_us, ticket, wait)
        allowed, remaining, retry_us, _, delay_us, at_us, fence = outcome
        assert (delay_us, at_us) == (0, now_us)
        assert allowed == (ahead < amount)
        if allowed:
            assert (remaining, retry_us, given) == (max(0, free - 1), 0, None)
            self.number(fence)
            self.fences.append(fence)
            truth.leases[fence] = moment_us + self.limit.ttl_us
            assert len(truth.held(moment_us)) <= amount
        else:
            assert (remaining, retry_us, fence) == (0, opens_us - now_us, ahead - amount + 1)
            assert (given is not None) == wait
            if given is not None and given != mine:
                assert mine is None
                self.number(given)
                self.tickets.append(given)
            if given is not None:
                truth.tickets[given] = moment_us + TICKET_US
        if allowed or given is not None:
            truth.written_us = moment_us

    def number(self, number: int) -> None:
        assert number > self.highest
        assert number >= self.now_us
        self.highest = number


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
