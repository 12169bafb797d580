"""Stories of the default algorithm: a service that queues, slows down, drops, recovers."""

import pytest

from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.adaptive.adaptive_concurrency_state import ConcurrencyState
from headgate.errors import InvalidRule
from tests.adaptive.windows import window

ALGORITHM = AdaptiveConcurrency()


class QueueingService:
    """A service with so many threads: calls take longer if there are more of them."""

    def __init__(self, threads: int, work_ms: float, state: ConcurrencyState | None = None) -> None:
        self.threads, self.work_ms = threads, work_ms
        self.state = state or ALGORITHM.start()

    def windows(self, number: int, offered: float = 1e9, **more: float) -> list[str]:
        """Passes so many windows, in which that many calls want to be in flight; returns the reasons."""
        reasons = []
        for _ in range(number):
            in_flight = min(float(int(self.state.limit)), offered)
            refused = 20 if offered > int(self.state.limit) else 0
            response_ms = self.work_ms * max(1.0, in_flight / self.threads)
            peak = int(self.state.limit) if refused else round(in_flight)
            _, self.state, reason = ALGORITHM.update(
                self.state, window(response_ms, in_flight, peak=peak, refused=refused)
            )
            reasons.append(reason)
        return reasons


def test_an_overloaded_service_gets_a_short_queue() -> None:
    service = QueueingService(threads=12, work_ms=150)
    service.windows(40)
    assert 13 <= service.state.limit <= 22
    assert service.state.base_ns == pytest.approx(150e6, rel=0.05)


@pytest.mark.parametrize("threads", [1, 2, 5, 40, 300])
def test_it_finds_servers_of_any_size(threads: int) -> None:
    service = QueueingService(threads=threads, work_ms=30)
    service.windows(60)
    assert threads <= service.state.limit <= 2.1 * threads + 1


def test_a_service_that_becomes_slower_keeps_its_limit() -> None:
    service = QueueingService(threads=12, work_ms=50)
    service.windows(40)
    service.work_ms = 150
    reasons = service.windows(12)
    assert "slower service" in reasons
    assert service.state.base_ns == pytest.approx(150e6, rel=0.05)
    assert 13 <= service.state.limit <= 22


def test_a_service_that_becomes_slower_again_and_again_is_no_death_spiral() -> None:
    service = QueueingService(threads=12, work_ms=50)
    for _ in range(12):
        service.work_ms *= 1.5
        service.windows(40)
        assert 12 <= service.state.limit <= 24


def test_lost_threads_shrink_the_limit_and_not_the_demands_on_the_service() -> None:
    service = QueueingService(threads=12, work_ms=100)
    service.windows(40)
    service.threads = 6
    service.windows(20)
    assert service.state.base_ns == pytest.approx(100e6, rel=0.1)
    assert 6 <= service.state.limit <= 12


def test_a_long_overload_does_not_raise_the_limit() -> None:
    service = QueueingService(threads=12, work_ms=120)
    service.windows(50)
    early = service.state.limit
    service.windows(5000)
    assert service.state.limit == pytest.approx(early, rel=0.15)


def test_a_healthy_service_is_left_alone() -> None:
    service = QueueingService(threads=12, work_ms=50)
    service.windows(1000, offered=5)
    assert service.state.limit == 20


def test_a_healthy_service_that_needs_more_gets_more() -> None:
    service = QueueingService(threads=200, work_ms=50)
    service.windows(12, offered=120)
    assert service.state.limit >= 120


def test_constant_timeouts_shrink_the_limit_to_its_floor_and_recovery_takes_a_few_windows() -> None:
    service = QueueingService(threads=12, work_ms=50)
    service.windows(20, offered=10)
    for _ in range(10):
        drops = window(0, 1, peak=int(service.state.limit), dropped=20, samples=0)
        _, service.state, reason = ALGORITHM.update(service.state, drops)
        assert reason == "dropped"
    assert service.state.limit == 1
    service.windows(12, offered=10)
    assert service.state.limit >= 10


def test_after_drops_the_limit_does_not_grow_for_a_while() -> None:
    state, drops = ALGORITHM.start(), []
    for _ in range(100):
        limit = int(state.limit)
        turned_away = 3 if limit > 5 else 0
        _, state, _ = ALGORITHM.update(
            state, window(100, limit, peak=limit, refused=5, dropped=turned_away, samples=20 - turned_away)
        )
        drops.append(bool(turned_away))
    assert sum(drops[20:]) <= 6
    assert 3 <= state.limit < 8


def test_a_few_failures_of_every_day_do_not_shrink_it() -> None:
    state = ALGORITHM.start()
    for number in range(200):
        dropped = 1 if number % 5 == 0 else 0
        _, state, _ = ALGORITHM.update(state, window(50, 5, peak=10, dropped=dropped))
    assert state.limit >= 20


def test_a_guard_stops_growth_and_lowers_only_with_a_queue() -> None:
    calm = window(50, 20, peak=20, refused=20, strained=True)
    _, state, reason = ALGORITHM.update(ALGORITHM.start(), calm)
    assert (state.limit, reason) == (20, "strained")
    _, state, reason = ALGORITHM.update(state, window(70, 20, peak=20, refused=20, strained=True))
    assert (state.limit, reason) == (18, "strained")


def test_noise_is_no_queue() -> None:
    state = ALGORITHM.start()
    for number in range(200):
        response_ms = 100 if number % 2 else 150
        _, state, _ = ALGORITHM.update(state, window(response_ms, 15, peak=20, spread=0.3))
    assert state.limit >= 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"floor": 9, "ceiling": 3}, "The floor of 9 is above the ceiling of 3: exchange them."),
        ({"tolerance": 0}, "tolerance is a number at least 1.1, at most 10; not 0."),
        ({"initial": 2.5}, "initial is a whole number of at least 1; not 2.5."),
        ({"min_window": 0}, "min_window is a number above 0, at most 60; not 0."),
        ({"samples": "many"}, "samples is a number at least 4, at most 10000; not 'many'."),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        AdaptiveConcurrency(**settings)  # type: ignore[arg-type]
    assert str(refused.value) == message
