"""Stories of slots in time, for the in-memory table and for the script in a server.

A story is a function of a SlotHarness; `stories` lists them all. Times are seconds since the story began.

The reason for its length: one list of stories that two engines run.
"""

from collections.abc import Callable

from headgate.algorithms.slots import TICKET_US, Slots
from tests.engines.slot_harness import BASE_US, SECOND, SlotHarness

TTL = 30.0

Story = Callable[[SlotHarness], None]
stories: list[Story] = []


def story(run_story: Story) -> Story:
    stories.append(run_story)
    return run_story


@story
def as_many_as_there_are_slots(harness: SlotHarness) -> None:
    assert harness.free() == 2
    harness.gets(remaining=1)
    harness.at(5)
    harness.gets(remaining=0)
    harness.at(6)
    harness.denied(retry_after=24)
    assert harness.free() == 0


@story
def a_released_slot_is_free_at_once(harness: SlotHarness) -> None:
    first, _ = harness.gets(), harness.gets()
    assert harness.releases(first)
    harness.gets(remaining=0)
    harness.denied()


@story
def a_crashed_holder_gives_its_slot_back_after_the_ttl(harness: SlotHarness) -> None:
    harness.gets()
    harness.at(10)
    harness.gets()
    harness.at(TTL - 0.000_001)
    harness.denied(retry_after=0.000_001)
    harness.at(TTL)
    harness.gets(remaining=0)
    harness.denied(retry_after=10)


@story
def renewing_keeps_a_slot_as_long_as_it_takes(harness: SlotHarness) -> None:
    fence = harness.gets()
    for turn in range(1, 11):
        harness.at(turn * 20)
        assert harness.renews(fence) == turn * 20 + TTL
    harness.gets()
    harness.denied(retry_after=TTL)


@story
def releasing_again_frees_nobody_elses_slot(harness: SlotHarness) -> None:
    first, second = harness.gets(), harness.gets()
    assert harness.releases(first)
    assert not harness.releases(first)
    third = harness.gets()
    assert not harness.releases(first)
    harness.denied()
    assert harness.releases(second)
    assert harness.releases(third)
    assert harness.free() == 2


@story
def an_expired_lease_can_be_neither_renewed_nor_released(harness: SlotHarness) -> None:
    late, _ = harness.gets(), harness.gets()
    harness.at(TTL)
    assert harness.renews(late) is None
    assert not harness.releases(late)
    harness.gets()
    harness.gets(remaining=0)
    assert harness.renews(late) is None
    assert not harness.releases(late)
    harness.denied()


@story
def a_ticket_is_not_a_lease(harness: SlotHarness) -> None:
    first, _ = harness.gets(), harness.gets()
    ticket = harness.waits()
    assert harness.renews(ticket) is None
    assert not harness.releases(ticket)
    assert not harness.leaves(first)
    assert harness.releases(first)
    harness.gets(ticket)


@story
def what_never_was_cannot_be_released(harness: SlotHarness) -> None:
    assert not harness.releases(BASE_US)
    assert harness.renews(BASE_US) is None
    assert not harness.leaves(BASE_US)


@story
def fences_grow_within_one_microsecond_and_across_death(harness: SlotHarness) -> None:
    harness.limit = Slots(5, ttl=1)
    fences = [harness.gets() for _ in range(5)]
    for fence in fences:
        assert harness.releases(fence)
    fences.append(harness.gets())
    harness.at(500)
    assert harness.keeper.forgotten()
    fences.append(harness.gets())
    assert harness.releases(fences[-1])
    harness.at(500.000_001)
    fences.append(harness.gets())
    assert fences == sorted(set(fences))
    assert fences[0] >= BASE_US
    assert fences[-1] >= BASE_US + 500 * SECOND


@story
def nothing_is_kept_of_an_idle_key(harness: SlotHarness) -> None:
    fence = harness.gets()
    harness.at(1)
    assert not harness.keeper.forgotten()
    assert harness.releases(fence)
    assert harness.keeper.forgotten()


@story
def nothing_is_kept_of_a_crashed_one(harness: SlotHarness) -> None:
    harness.gets()
    harness.at(TTL + 0.102)
    assert harness.keeper.forgotten()


@story
def a_denied_newcomer_leaves_no_trace(harness: SlotHarness) -> None:
    harness.limit = Slots(1, ttl=10)
    harness.gets()
    for tenth in range(1, 100):
        harness.at(tenth / 10)
        harness.denied(retry_after=10 - tenth / 10)
    harness.at(10)
    harness.gets()


@story
def waiters_are_served_in_order(harness: SlotHarness) -> None:
    first, second = harness.gets(), harness.gets()
    harness.at(1)
    a, b, c = harness.waits(place=1), harness.waits(place=2), harness.waits(place=3)
    assert a < b < c
    assert harness.releases(first)
    assert harness.waits(c, place=2) == c
    assert harness.waits(b, place=1) == b
    harness.denied()
    harness.gets(a)
    assert harness.waits(b, place=1) == b
    assert harness.releases(second)
    assert harness.waits(c, place=1) == c
    harness.gets(b)


@story
def two_free_slots_serve_the_first_two(harness: SlotHarness) -> None:
    first, second = harness.gets(), harness.gets()
    a, b, c = harness.waits(), harness.waits(), harness.waits()
    assert harness.releases(first)
    assert harness.releases(second)
    assert harness.waits(c) == c
    harness.gets(b)
    assert harness.waits(c) == c
    harness.gets(a)


@story
def a_newcomer_passes_if_a_slot_is_left_for_all_in_line(harness: SlotHarness) -> None:
    harness.limit = Slots(3)
    first, second, _ = harness.gets(), harness.gets(), harness.gets()
    waiter = harness.waits()
    assert harness.releases(first)
    assert harness.free() == 0
    harness.denied()
    assert harness.releases(second)
    assert harness.free() == 1
    harness.gets(remaining=0)
    harness.denied()
    harness.gets(waiter, remaining=0)


@story
def a_dead_waiter_drops_out(harness: SlotHarness) -> None:
    first, _ = harness.gets(), harness.gets()
    dead, alive = harness.waits(), harness.waits()
    life = TICKET_US / SECOND
    harness.at(life / 2)
    assert harness.waits(alive) == alive
    assert harness.releases(first)
    harness.at(life - 0.000_001)
    assert harness.waits(alive) == alive
    harness.at(life)
    harness.gets(alive)
    assert harness.waits(dead) != dead


@story
def a_dead_waiter_behind_makes_no_room(harness: SlotHarness) -> None:
    first, _ = harness.gets(), harness.gets()
    early = harness.waits()
    harness.waits()
    harness.at(0.6)
    assert harness.waits(early) == early
    harness.at(1.2)
    assert harness.waits(early) == early
    assert harness.releases(first)
    harness.gets(early, remaining=0)


@story
def a_late_waiter_starts_at_the_end(harness: SlotHarness) -> None:
    first, _ = harness.gets(), harness.gets()
    late = harness.waits()
    harness.at(0.5)
    other = harness.waits()
    harness.at(1.2)
    again = harness.waits(late)
    assert again > other
    assert harness.releases(first)
    assert harness.waits(again) == again
    harness.gets(other)


@story
def asking_again_keeps_a_place_for_ever(harness: SlotHarness) -> None:
    harness.limit = Slots(1, ttl=1000)
    harness.gets()
    ticket = harness.waits()
    for turn in range(1, 100):
        harness.at(turn * 0.9)
        assert harness.waits(ticket) == ticket
    harness.at(1000)
    harness.gets()


@story
def who_leaves_lets_the_next_one_in(harness: SlotHarness) -> None:
    first, _ = harness.gets(), harness.gets()
    a, b = harness.waits(), harness.waits()
    assert harness.releases(first)
    assert harness.waits(b) == b
    assert harness.leaves(a)
    assert not harness.leaves(a)
    harness.gets(b)


@story
def the_last_question_gives_the_ticket_up(harness: SlotHarness) -> None:
    first, _ = harness.gets(), harness.gets()
    a, b = harness.waits(), harness.waits()
    outcome, left = harness.acquire_or_poll(a, wait=False)
    assert (outcome[0], left) == (False, None)
    assert harness.releases(first)
    harness.gets(b)
    assert harness.waits(a) != a


@story
def a_newcomer_gets_the_instant_when_the_line_would_be_gone(harness: SlotHarness) -> None:
    harness.limit = Slots(2, ttl=0.5)
    harness.gets()
    harness.at(0.2)
    harness.gets()
    harness.waits()
    harness.at(0.3)
    harness.waits()
    # Ends: 0.5, 0.7 (leases), 1.2, 1.3 (tickets). A newcomer needs all but one of the four to end.
    harness.denied(retry_after=1.2 - 0.3)
    harness.at(1.2 - 0.000_001)
    harness.denied(retry_after=0.000_001)
    harness.at(1.2)
    harness.gets()


@story
def a_lowered_amount_waits_until_fewer_are_held(harness: SlotHarness) -> None:
    harness.limit = Slots(5)
    fences = []
    for second in range(5):
        harness.at(second)
        fences.append(harness.gets())
    harness.limit = Slots(2)
    # The fourth to end leaves one.
    harness.denied(retry_after=TTL + 3 - 4)
    assert harness.free() == 0
    for fence in fences[:3]:
        assert harness.releases(fence)
        harness.denied()
    assert harness.releases(fences[3])
    harness.gets(remaining=0)


@story
def a_raised_amount_counts_at_once(harness: SlotHarness) -> None:
    harness.gets()
    harness.gets(remaining=0)
    harness.limit = Slots(4)
    harness.gets(remaining=1)


@story
def a_changed_ttl_applies_from_the_next_renewal(harness: SlotHarness) -> None:
    fence, other = harness.gets(), harness.gets()
    harness.limit = Slots(2, ttl=5)
    harness.at(10)
    harness.denied(retry_after=20)
    assert harness.renews(fence) == 15
    harness.denied(retry_after=5)
    harness.at(15)
    assert harness.renews(fence) is None
    assert harness.renews(other) == 20


@story
def a_clock_that_steps_back_locks_nobody_out(harness: SlotHarness) -> None:
    hour = 3600
    harness.at(hour)
    harness.gets()
    harness.at(hour + 10)
    harness.gets()
    harness.at(0)
    # The leases had 20 s and 30 s left when last one was given, and have so again.
    harness.denied(retry_after=20)
    harness.at(20)
    harness.gets()
    harness.denied(retry_after=10)


@story
def a_clock_that_steps_back_ends_no_lease_and_repeats_no_fence(harness: SlotHarness) -> None:
    harness.at(3600)
    first = harness.gets()
    harness.at(0)
    assert harness.renews(first) == TTL
    second = harness.gets()
    assert second > first
    assert harness.releases(first)
    assert harness.releases(second)
    assert harness.gets() > second


@story
def a_clock_that_steps_back_keeps_the_line(harness: SlotHarness) -> None:
    harness.at(3600)
    first, _ = harness.gets(), harness.gets()
    a, b = harness.waits(), harness.waits()
    harness.at(0)
    assert harness.waits(b) == b
    assert harness.releases(first)
    assert harness.waits(b) == b
    harness.at(0.999_999)
    assert harness.waits(b) == b
    harness.at(1)
    harness.gets(b)
    assert harness.waits(a) != a


@story
def a_clock_that_steps_forward_is_time_that_passed(harness: SlotHarness) -> None:
    fence = harness.gets()
    harness.at(3600)
    assert harness.renews(fence) is None
    assert harness.free() == 2


@story
def a_fence_does_not_come_again_when_the_clock_is_set_back_after_the_release(harness: SlotHarness) -> None:
    harness.at(3600)
    first = harness.gets()
    assert harness.releases(first)
    for seconds in (3599.999_999, 3599, 0):
        harness.at(seconds)
        later = harness.gets()
        assert later > first
        assert harness.releases(later)
        first = later


@story
def a_waiter_that_gives_up_removes_nobody_else(harness: SlotHarness) -> None:
    """An expired waiter is in line again if the clock is set back, because no slot was granted meanwhile."""
    for back_to in (0.999_999, 0.5):
        held = [harness.gets(), harness.gets()]
        a = harness.waits()
        harness.at(0.999_999)
        b = harness.waits()
        harness.at(1)
        outcome, given = harness.acquire_or_poll(b, wait=False)
        assert (outcome[0], given) == (False, None)
        harness.at(back_to)
        assert harness.waits(a) == a
        assert harness.leaves(a)
        for fence in held:
            assert harness.releases(fence)
        harness.at(0)


@story
def a_clock_that_swings_shortens_no_lease(harness: SlotHarness) -> None:
    """Two processes read clocks that differ by a tenth of a second, a hundred times each."""
    harness.limit = Slots(2, ttl=2)
    harness.at(0.1)
    first = harness.gets()
    for swing in range(100):
        harness.at(0.1 * (swing % 2))
        harness.releases(harness.gets())
    harness.at(2.09)
    assert harness.renews(first) is not None
