"""Cancellations that are tried again, and when: without a server."""

from headgate.engines.pending_cancellations import PendingCancellations, QueuePlace
from headgate.engines.redis.cancel_replies import was_given_back
from headgate.engines.redis.errors import TimedOut
from headgate.engines.redis.protocol import RedisRequest

NOW_US = 1_000


def cancellation(served_us: int, count: bytes = b"count") -> RedisRequest:
    return RedisRequest(b"%d" % served_us, None, queue_place=QueuePlace(count, served_us))


def reply(gave: int) -> list[int]:
    return [1, 0, 0, 0, 0, NOW_US, 0, gave]


def test_cancellations_that_gave_nothing_are_retried_newest_first() -> None:
    pending: PendingCancellations[RedisRequest] = PendingCancellations()
    for served_us in (2_000, 4_000, 3_000):
        assert not was_given_back(pending, cancellation(served_us), reply(0))
    assert was_given_back(pending, cancellation(5_000), reply(1))
    assert [each.packed for each in pending.pop_last(b"count", 2)] == [b"4000", b"3000"]
    assert [each.packed for each in pending.pop_last(b"count", 2)] == [b"2000"]
    assert pending.pop_last(b"count", 2) == []
    assert len(pending) == 0


def test_finished_or_unknown_cancellations_are_not_retried() -> None:
    pending: PendingCancellations[RedisRequest] = PendingCancellations()
    assert was_given_back(pending, cancellation(2_000), reply(1))
    assert not was_given_back(pending, cancellation(NOW_US), reply(0))
    assert not was_given_back(pending, cancellation(2_000), TimedOut("no reply in time"))
    assert not was_given_back(pending, cancellation(2_000), [-2, NOW_US])  # a calendar's window has ended
    assert not was_given_back(pending, RedisRequest(b"", None), reply(0))
    assert len(pending) == 0
    assert not pending.start_retry(b"count")


def test_one_tries_a_count_again_at_a_time_and_begins_anew_for_others() -> None:
    pending: PendingCancellations[RedisRequest] = PendingCancellations()
    was_given_back(pending, cancellation(2_000), reply(0))
    assert pending.start_retry(b"count")
    assert pending.continue_retry(b"count")
    pending.pop_last(b"count", 1)
    assert not pending.start_retry(b"count")  # another place was given back meanwhile
    assert pending.continue_retry(b"count")
    assert not pending.continue_retry(b"count")
    was_given_back(pending, cancellation(2_000), reply(0))
    assert pending.start_retry(b"count")


def test_the_number_of_pending_cancellations_is_bounded() -> None:
    pending: PendingCancellations[RedisRequest] = PendingCancellations(max_places=10)
    for number in range(100):
        was_given_back(pending, cancellation(2_000 + number, b"%d" % (number % 20)), reply(0))
        assert len(pending) <= 10
    assert pending.pop_last(b"99", 1) == []
    assert [each.packed for each in pending.pop_last(b"19", 1)] == [b"2099"]
