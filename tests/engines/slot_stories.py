"""Stories of slots in time, told to whoever keeps them: the table in memory, and the script in a server.

A story is a function of a SlotHarness; `stories` lists them all. Times are seconds since the story began.
"""

from collections.abc import Callable

from headgate.algorithms.slots import TICKET_US, Slots
from tests.engines.slot_harness import BASE_US, SECOND, SlotHarness

TTL = 30.0

Story = Callable[[SlotHarness], None]
stories: list[Story] = []


def story(tell: Story) -> Story:
    stories.append(tell)
    return tell


@story
def as_many_as_there_are_slots(room: SlotHarness) -> None:
    assert room.free() == 2
    room.gets(remaining=1)
    room.at(5)
    room.gets(remaining=0)
    room.at(6)
    room.denied(retry_after=24)
    assert room.free() == 0


@story
def a_released_slot_is_free_at_once(room: SlotHarness) -> None:
    first, _ = room.gets(), room.gets()
    assert room.releases(first)
    room.gets(remaining=0)
    room.denied()


@story
def a_crashed_holder_gives_its_slot_back_after_the_ttl(room: SlotHarness) -> None:
    room.gets()
    room.at(10)
    room.gets()
    room.at(TTL - 0.000_001)
    room.denied(retry_after=0.000_001)
    room.at(TTL)
    room.gets(remaining=0)
    room.denied(retry_after=10)


@story
def renewing_keeps_a_slot_as_long_as_it_takes(room: SlotHarness) -> None:
    fence = room.gets()
    for turn in range(1, 11):
        room.at(turn * 20)
        assert room.renews(fence) == turn * 20 + TTL
    room.gets()
    room.denied(retry_after=TTL)


@story
def releasing_again_frees_nobody_elses_slot(room: SlotHarness) -> None:
    first, second = room.gets(), room.gets()
    assert room.releases(first)
    assert not room.releases(first)
    third = room.gets()
    assert not room.releases(first)
    room.denied()
    assert room.releases(second)
    assert room.releases(third)
    assert room.free() == 2


@story
def an_expired_lease_can_be_neither_renewed_nor_released(room: SlotHarness) -> None:
    late, _ = room.gets(), room.gets()
    room.at(TTL)
    assert room.renews(late) is None
    assert not room.releases(late)
    room.gets()
    room.gets(remaining=0)
    assert room.renews(late) is None
    assert not room.releases(late)
    room.denied()


@story
def a_ticket_is_not_a_lease(room: SlotHarness) -> None:
    first, _ = room.gets(), room.gets()
    ticket = room.waits()
    assert room.renews(ticket) is None
    assert not room.releases(ticket)
    assert not room.leaves(first)
    assert room.releases(first)
    room.gets(ticket)


@story
def what_never_was_cannot_be_released(room: SlotHarness) -> None:
    assert not room.releases(BASE_US)
    assert room.renews(BASE_US) is None
    assert not room.leaves(BASE_US)


@story
def fences_grow_within_one_microsecond_and_across_death(room: SlotHarness) -> None:
    room.limit = Slots(5, ttl=1)
    fences = [room.gets() for _ in range(5)]
    for fence in fences:
        assert room.releases(fence)
    fences.append(room.gets())
    room.at(500)
    assert room.keeper.forgotten()
    fences.append(room.gets())
    assert room.releases(fences[-1])
    room.at(500.000_001)
    fences.append(room.gets())
    assert fences == sorted(set(fences))
    assert fences[0] >= BASE_US
    assert fences[-1] >= BASE_US + 500 * SECOND


@story
def nothing_is_kept_of_an_idle_key(room: SlotHarness) -> None:
    fence = room.gets()
    room.at(1)
    assert not room.keeper.forgotten()
    assert room.releases(fence)
    assert room.keeper.forgotten()


@story
def nothing_is_kept_of_a_crashed_one(room: SlotHarness) -> None:
    room.gets()
    room.at(TTL + 0.102)
    assert room.keeper.forgotten()


@story
def a_denied_newcomer_leaves_no_trace(room: SlotHarness) -> None:
    room.limit = Slots(1, ttl=10)
    room.gets()
    for tenth in range(1, 100):
        room.at(tenth / 10)
        room.denied(retry_after=10 - tenth / 10)
    room.at(10)
    room.gets()


@story
def waiters_are_served_in_order(room: SlotHarness) -> None:
    first, second = room.gets(), room.gets()
    room.at(1)
    a, b, c = room.waits(place=1), room.waits(place=2), room.waits(place=3)
    assert a < b < c
    assert room.releases(first)
    assert room.waits(c, place=2) == c
    assert room.waits(b, place=1) == b
    room.denied()
    room.gets(a)
    assert room.waits(b, place=1) == b
    assert room.releases(second)
    assert room.waits(c, place=1) == c
    room.gets(b)


@story
def two_free_slots_serve_the_first_two(room: SlotHarness) -> None:
    first, second = room.gets(), room.gets()
    a, b, c = room.waits(), room.waits(), room.waits()
    assert room.releases(first)
    assert room.releases(second)
    assert room.waits(c) == c
    room.gets(b)
    assert room.waits(c) == c
    room.gets(a)


@story
def a_newcomer_passes_if_a_slot_is_left_for_all_in_line(room: SlotHarness) -> None:
    room.limit = Slots(3)
    first, second, _ = room.gets(), room.gets(), room.gets()
    waiter = room.waits()
    assert room.releases(first)
    assert room.free() == 0
    room.denied()
    assert room.releases(second)
    assert room.free() == 1
    room.gets(remaining=0)
    room.denied()
    room.gets(waiter, remaining=0)


@story
def a_dead_waiter_drops_out(room: SlotHarness) -> None:
    first, _ = room.gets(), room.gets()
    dead, alive = room.waits(), room.waits()
    life = TICKET_US / SECOND
    room.at(life / 2)
    assert room.waits(alive) == alive
    assert room.releases(first)
    room.at(life - 0.000_001)
    assert room.waits(alive) == alive
    room.at(life)
    room.gets(alive)
    assert room.waits(dead) != dead


@story
def a_dead_waiter_behind_makes_no_room(room: SlotHarness) -> None:
    first, _ = room.gets(), room.gets()
    early = room.waits()
    room.waits()
    room.at(0.6)
    assert room.waits(early) == early
    room.at(1.2)
    assert room.waits(early) == early
    assert room.releases(first)
    room.gets(early, remaining=0)


@story
def a_late_waiter_starts_at_the_end(room: SlotHarness) -> None:
    first, _ = room.gets(), room.gets()
    late = room.waits()
    room.at(0.5)
    other = room.waits()
    room.at(1.2)
    again = room.waits(late)
    assert again > other
    assert room.releases(first)
    assert room.waits(again) == again
    room.gets(other)


@story
def asking_again_keeps_a_place_for_ever(room: SlotHarness) -> None:
    room.limit = Slots(1, ttl=1000)
    room.gets()
    ticket = room.waits()
    for turn in range(1, 100):
        room.at(turn * 0.9)
        assert room.waits(ticket) == ticket
    room.at(1000)
    room.gets()


@story
def who_leaves_lets_the_next_one_in(room: SlotHarness) -> None:
    first, _ = room.gets(), room.gets()
    a, b = room.waits(), room.waits()
    assert room.releases(first)
    assert room.waits(b) == b
    assert room.leaves(a)
    assert not room.leaves(a)
    room.gets(b)


@story
def the_last_question_gives_the_ticket_up(room: SlotHarness) -> None:
    first, _ = room.gets(), room.gets()
    a, b = room.waits(), room.waits()
    facts, left = room.ask(a, wait=False)
    assert (facts[0], left) == (False, None)
    assert room.releases(first)
    room.gets(b)
    assert room.waits(a) != a


@story
def a_newcomer_is_told_when_the_line_would_be_gone(room: SlotHarness) -> None:
    room.limit = Slots(2, ttl=0.5)
    room.gets()
    room.at(0.2)
    room.gets()
    room.waits()
    room.at(0.3)
    room.waits()
    # Ends: 0.5, 0.7 (leases), 1.2, 1.3 (tickets). A newcomer needs all but one of the four to end.
    room.denied(retry_after=1.2 - 0.3)
    room.at(1.2 - 0.000_001)
    room.denied(retry_after=0.000_001)
    room.at(1.2)
    room.gets()


@story
def a_lowered_amount_waits_until_fewer_are_held(room: SlotHarness) -> None:
    room.limit = Slots(5)
    fences = []
    for second in range(5):
        room.at(second)
        fences.append(room.gets())
    room.limit = Slots(2)
    # The fourth to end leaves one.
    room.denied(retry_after=TTL + 3 - 4)
    assert room.free() == 0
    for fence in fences[:3]:
        assert room.releases(fence)
        room.denied()
    assert room.releases(fences[3])
    room.gets(remaining=0)


@story
def a_raised_amount_counts_at_once(room: SlotHarness) -> None:
    room.gets()
    room.gets(remaining=0)
    room.limit = Slots(4)
    room.gets(remaining=1)


@story
def a_changed_ttl_applies_from_the_next_renewal(room: SlotHarness) -> None:
    fence, other = room.gets(), room.gets()
    room.limit = Slots(2, ttl=5)
    room.at(10)
    room.denied(retry_after=20)
    assert room.renews(fence) == 15
    room.denied(retry_after=5)
    room.at(15)
    assert room.renews(fence) is None
    assert room.renews(other) == 20


@story
def a_clock_that_steps_back_locks_nobody_out(room: SlotHarness) -> None:
    hour = 3600
    room.at(hour)
    room.gets()
    room.at(hour + 10)
    room.gets()
    room.at(0)
    # The leases had 20 s and 30 s left when last one was given, and have so again.
    room.denied(retry_after=20)
    room.at(20)
    room.gets()
    room.denied(retry_after=10)


@story
def a_clock_that_steps_back_ends_no_lease_and_repeats_no_fence(room: SlotHarness) -> None:
    room.at(3600)
    first = room.gets()
    room.at(0)
    assert room.renews(first) == TTL
    second = room.gets()
    assert second > first
    assert room.releases(first)
    assert room.releases(second)
    assert room.gets() > second


@story
def a_clock_that_steps_back_keeps_the_line(room: SlotHarness) -> None:
    room.at(3600)
    first, _ = room.gets(), room.gets()
    a, b = room.waits(), room.waits()
    room.at(0)
    assert room.waits(b) == b
    assert room.releases(first)
    assert room.waits(b) == b
    room.at(0.999_999)
    assert room.waits(b) == b
    room.at(1)
    room.gets(b)
    assert room.waits(a) != a


@story
def a_clock_that_steps_forward_is_time_that_passed(room: SlotHarness) -> None:
    fence = room.gets()
    room.at(3600)
    assert room.renews(fence) is None
    assert room.free() == 2


@story
def a_fence_does_not_come_again_when_the_clock_is_set_back_after_the_release(room: SlotHarness) -> None:
    room.at(3600)
    first = room.gets()
    assert room.releases(first)
    for seconds in (3599.999_999, 3599, 0):
        room.at(seconds)
        later = room.gets()
        assert later > first
        assert room.releases(later)
        first = later


@story
def a_waiter_that_gives_up_removes_nobody_else(room: SlotHarness) -> None:
    """What has expired is in line again if the clock is set back: nothing was given meanwhile."""
    for back_to in (0.999_999, 0.5):
        held = [room.gets(), room.gets()]
        a = room.waits()
        room.at(0.999_999)
        b = room.waits()
        room.at(1)
        facts, given = room.ask(b, wait=False)
        assert (facts[0], given) == (False, None)
        room.at(back_to)
        assert room.waits(a) == a
        assert room.leaves(a)
        for fence in held:
            assert room.releases(fence)
        room.at(0)


@story
def a_clock_that_swings_shortens_no_lease(room: SlotHarness) -> None:
    """Two processes read clocks that differ by a tenth of a second, a hundred times each."""
    room.limit = Slots(2, ttl=2)
    room.at(0.1)
    first = room.gets()
    for swing in range(100):
        room.at(0.1 * (swing % 2))
        room.releases(room.gets())
    room.at(2.09)
    assert room.renews(first) is not None
