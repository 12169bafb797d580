"""Shapes of traffic have the calls that they promise, and limits treat them as they would real calls."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidRule
from headgate.traffic.shapes import SHAPES, TrafficShape
from headgate.traffic.simulate_shape import limit_rulebook, simulate


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_the_calls_it_promises_in_order(name: str) -> None:
    shape = TrafficShape(name, rate=50, seconds=100, clients=20)
    arrivals = list(shape.arrivals())
    times = [time_us for time_us, _ in arrivals]
    assert times == sorted(times)
    assert len(times) == pytest.approx(5000, rel=0.06)
    assert 0 <= times[0] <= times[-1] < 100_000_000
    assert {client for _, client in arrivals} == set(range(20))
    assert arrivals == list(shape.arrivals())


def counts(name: str, parts: int) -> list[int]:
    found = [0] * parts
    for time_us, _ in TrafficShape(name, rate=100, seconds=100).arrivals():
        found[time_us * parts // 100_000_000] += 1
    return found


def test_the_shapes_differ_as_their_names_say() -> None:
    assert counts("steady", 4) == [2500] * 4
    ramp = counts("ramp", 4)
    assert ramp == sorted(ramp)
    assert ramp[3] > 5 * ramp[0]
    sale = counts("flash-sale", 20)
    assert max(range(20), key=sale.__getitem__) == 5
    assert sale[5] > 10 * sale[4]
    day = counts("diurnal", 5)
    assert day[2] > 3 * day[0]
    assert day[2] > 3 * day[4]
    burst = counts("square-burst", 10)
    assert all(busy > 5 * quiet for quiet, busy in zip(burst[::2], burst[1::2], strict=True))
    herd = {time_us for time_us, _ in TrafficShape("thundering-herd", rate=100, seconds=100).arrivals()}
    assert len(herd) == 10


def run(shape: str, limit: str, retries: str | None = None, per_client: bool = False) -> tuple[int, ...]:
    traffic = TrafficShape(shape, rate=20, seconds=20, clients=10, retries=retries)
    result = simulate(traffic, limit, limit_rulebook(limit, per_client))
    assert result.passed + result.refused == result.offered
    assert result.passed + result.given_up == result.calls
    assert sum(map(sum, result.seconds)) == result.offered
    return result.offered, result.passed, result.delayed, result.refused, result.given_up


def test_limits_side_by_side() -> None:
    assert run("steady", "20/s") == (400, 400, 0, 0, 0)
    assert run("steady", "10/s burst 10") == (400, 209, 0, 191, 191)
    assert run("thundering-herd", "10/s burst 50") == (400, 100, 0, 300, 300)
    offered, passed, delayed, refused, _ = run("steady", "10/s queue 5")
    assert (offered, passed + refused) == (400, 400)
    assert delayed > 0
    assert run("thundering-herd", "1/s burst 5", per_client=True) == (400, 100, 0, 300, 300)


def test_slots_are_held_for_the_duration_of_a_call() -> None:
    traffic = TrafficShape("steady", rate=10, seconds=10)
    book = limit_rulebook("1 slot")
    assert simulate(traffic, "1 slot", book, duration=0.1).passed == 100
    assert simulate(traffic, "1 slot", book, duration=0.15).passed == 50


def test_a_client_that_honours_retry_after_asks_less_often() -> None:
    storm, polite = run("retry-storm", "15/s burst 15"), run("retry-storm", "15/s burst 15", "honour")
    assert polite[3] < storm[3] / 2
    assert run("retry-storm", "15/s burst 15", "none")[0] < polite[0]


def test_nobody_waits_longer_than_an_hour() -> None:
    traffic = TrafficShape("steady", rate=10, seconds=2, retries="honour")
    result = simulate(traffic, "1/1000d", limit_rulebook("1/1000d"))
    assert (result.offered, result.passed, result.given_up) == (20, 1, 19)
    assert len(result.seconds) == 2


def test_a_cost_that_never_fits_is_given_up() -> None:
    traffic = TrafficShape("steady", rate=10, seconds=1, retries="honour")
    book = limit_rulebook("10/s")
    assert simulate(traffic, "10/s", book).peak_passed == 10
    assert simulate(traffic, "10/s", book).wait_s(0.99) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "wave"}, '"wave" is no shape of traffic. Known: steady'),
        ({"name": "ramp", "rate": 0}, "each above 0"),
        ({"name": "ramp", "rate": 1e6, "seconds": 100}, "at most 5,000,000 calls"),
        ({"name": "ramp", "retries": "always"}, "no way to retry"),
    ],
)
def test_mistakes(options: dict[str, float | str], sentence: str) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        TrafficShape(**options)  # type: ignore[arg-type]
