"""The breaker as a story in time. Pure: no request, no sleep."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.engines.layers.fallback.breaker import (
    CALL,
    CLOSED,
    FALL_BACK,
    OPEN,
    PROBE,
    PROBING,
    SETTLING,
    Breaker,
    BreakerRoute,
)

NOW = 1_700_000_000_000_000
MS = 1000
SETTLE_US = 1_000_000


def opened(now_us: int = NOW) -> Breaker:
    breaker = Breaker()
    for _ in range(3):
        breaker = breaker.on_failure(CALL, now_us)
    return breaker


def route(breaker: Breaker, now_us: int) -> BreakerRoute:
    return breaker.choose_route(now_us)[0]


def test_three_failures_in_a_row_open_it() -> None:
    breaker = Breaker().on_failure(CALL, NOW).on_failure(CALL, NOW)
    assert route(breaker, NOW) is CALL
    breaker = breaker.on_failure(CALL, NOW)
    assert breaker.phase is OPEN
    assert route(breaker, NOW) is FALL_BACK
    assert breaker.pause_left_us(NOW + 40 * MS) == 60 * MS


def test_a_slow_trickle_does_not_open_it() -> None:
    breaker = Breaker()
    for _ in range(100):
        breaker = breaker.on_failure(CALL, NOW).on_failure(CALL, NOW).on_success(CALL, NOW, SETTLE_US)
        assert (breaker.phase, breaker.failures) == (CLOSED, 0)


def test_exactly_one_call_probes() -> None:
    at = NOW + 100 * MS
    assert route(opened(), at - 1) is FALL_BACK
    first, breaker = opened().choose_route(at)
    assert (first, breaker.phase) == (PROBE, PROBING)
    assert [route(breaker, at + later) for later in (0, 1, 400 * MS)] == [FALL_BACK] * 3


def test_pauses_double_up_to_half_a_second() -> None:
    breaker, at, pauses = opened(), NOW, []
    for _ in range(5):
        pauses.append(breaker.pause_left_us(at) // MS)
        at += pauses[-1] * MS
        route, breaker = breaker.choose_route(at)
        assert route is PROBE
        breaker = breaker.on_failure(PROBE, at)
    assert pauses == [100, 200, 400, 500, 500]


def test_a_probe_that_succeeds_begins_the_settling() -> None:
    at = NOW + 100 * MS
    breaker = opened().choose_route(at)[1].on_success(PROBE, at, SETTLE_US)
    assert breaker.phase is SETTLING
    assert breaker.choose_route(at + SETTLE_US - 1) == (CALL, breaker)
    route, breaker = breaker.choose_route(at + SETTLE_US)
    assert (route, breaker.phase) == (CALL, CLOSED)
    assert breaker.on_failure(CALL, at).on_failure(CALL, at).phase is CLOSED  # it counts from nothing


def test_with_nothing_to_settle_it_is_closed_at_once() -> None:
    assert opened().choose_route(NOW + 100 * MS)[1].on_success(PROBE, NOW + 100 * MS, 0) == Breaker()


def test_three_failures_while_settling_open_it_again() -> None:
    at = NOW + 100 * MS
    breaker = opened().choose_route(at)[1].on_success(PROBE, at, SETTLE_US)
    breaker = breaker.on_failure(CALL, at).on_failure(CALL, at)
    assert breaker.phase is SETTLING
    assert breaker.on_failure(CALL, at).pause_left_us(at) == 100 * MS


def test_results_of_calls_sent_before_it_opened_change_nothing() -> None:
    for breaker in (opened(), opened().choose_route(NOW + 100 * MS)[1]):
        assert breaker.on_failure(CALL, NOW + 100 * MS) is breaker
        assert breaker.on_success(CALL, NOW + 100 * MS, SETTLE_US) is breaker


def test_an_unsent_probe_frees_its_place() -> None:
    at = NOW + 100 * MS
    breaker = opened().choose_route(at)[1].on_withdrawal(PROBE, at)
    assert route(breaker, at) is PROBE
    assert Breaker().on_withdrawal(CALL, at) == Breaker()


def test_a_probe_without_a_result_is_given_up() -> None:
    breaker = opened().choose_route(NOW + 100 * MS)[1]
    assert route(breaker, NOW + 5_100 * MS) is PROBE


def test_a_reply_ends_the_wait_before_the_next_probe() -> None:
    assert route(opened().on_contact(NOW + 1), NOW + 1) is PROBE
    assert Breaker().on_contact(NOW) == Breaker()


def test_a_clock_that_steps_back_ends_any_pause() -> None:
    assert route(opened(), NOW - 3_600_000 * MS) is PROBE
    assert opened().pause_left_us(NOW - 1) == 0
    settling = opened().choose_route(NOW + 100 * MS)[1].on_success(PROBE, NOW + 100 * MS, SETTLE_US)
    assert settling.choose_route(NOW)[1].phase is CLOSED


@given(st.lists(st.tuples(st.integers(0, 700), st.booleans()), max_size=60))
def test_there_is_never_more_than_one_probe(events: list[tuple[int, bool]]) -> None:
    """Many calls; each asks, and learns its outcome when the next event comes."""
    breaker, at, probing = opened(), NOW, False
    for after_ms, succeeds in events:
        at += after_ms * MS
        route, breaker = breaker.choose_route(at)
        assert not (probing and route is PROBE)
        assert probing == (breaker.phase is PROBING and route is not PROBE)
        probing = probing or route is PROBE
        if probing and after_ms % 2:
            breaker = breaker.on_success(PROBE, at, SETTLE_US) if succeeds else breaker.on_failure(PROBE, at)
            probing = False
            assert breaker.phase is (SETTLING if succeeds else OPEN)
        if at - NOW > 4_000 * MS:
            return
