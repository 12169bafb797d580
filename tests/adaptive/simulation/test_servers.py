"""Simulated servers take as long for a call as their model says."""

from random import Random

import pytest

from headgate.adaptive.simulation.servers import DelayServer, Server, SharedThreads, SlicedThreads

MS = 1_000_000.0


def _responses(server: Server, arrivals: list[tuple[float, float]]) -> dict[int, float]:
    """The response time in ms of each call that comes at this ms, with this work."""
    waiting = list(enumerate(arrivals))
    responses: dict[int, float] = {}
    while waiting or server.in_flight:
        if waiting and waiting[0][1][0] * MS <= server.next_ns:
            number, (at_ms, work_ms) = waiting.pop(0)
            server.add(at_ms * MS, number, work_ms * MS)
        else:
            now_ns = server.next_ns
            number, _ = server.pop()
            if number is not None:
                responses[number] = now_ns / MS - arrivals[number][0]
    return responses


def test_up_to_its_threads_a_server_does_not_queue() -> None:
    for server in (SharedThreads(3), SlicedThreads(3, 10)):
        assert _responses(server, [(0, 50), (0, 50), (10, 50)]) == pytest.approx({0: 50, 1: 50, 2: 50})


def test_twice_as_many_calls_as_threads_take_twice_as_long() -> None:
    assert _responses(SharedThreads(2), [(0, 50)] * 4) == pytest.approx(dict.fromkeys(range(4), 100))


def test_a_single_slice_is_first_come_first_served() -> None:
    assert _responses(SlicedThreads(1, 1), [(0, 10), (1, 10), (2, 10)]) == pytest.approx({0: 10, 1: 19, 2: 28})


def test_a_long_call_uses_no_more_than_a_thread() -> None:
    arrivals = [(0.0, 300.0), (0.0, 30.0), (0.0, 30.0)]
    responses = _responses(SharedThreads(2), arrivals)
    assert responses[0] >= 300
    assert responses == pytest.approx(_responses(SlicedThreads(2, 100), arrivals), rel=0.1)


@pytest.mark.parametrize(("threads", "works"), [(12, (50, 150)), (10, (100, 100)), (6, (100, 100))])
def test_thin_slices_and_continuous_sharing_agree(threads: int, works: tuple[int, int]) -> None:
    random = Random(3)
    arrivals, at_ms = [], 0.0
    for number in range(400):
        at_ms += random.expovariate(1 / 10)
        arrivals.append((at_ms, float(works[number % 100 // 50])))
    continuous = _responses(SharedThreads(threads), arrivals)
    sliced = _responses(SlicedThreads(threads, 100), arrivals)
    for number, response_ms in continuous.items():
        assert sliced[number] == pytest.approx(response_ms, rel=0.05, abs=3)
    assert sum(sliced.values()) == pytest.approx(sum(continuous.values()), rel=0.02)


def test_threads_can_change_while_calls_run() -> None:
    for server, total in ((SharedThreads(1), 75), (SlicedThreads(1, 10), 75)):
        server.add(0.0, "first", 50 * MS)
        server.add(0.0, "second", 50 * MS)
        ends = []
        changed = False
        while server.in_flight:
            if not changed and server.next_ns >= 50 * MS:
                server.set_threads(50 * MS, 2)
                changed = True
            now_ns = server.next_ns
            call, _ = server.pop()
            if call:
                ends.append(now_ns / MS)
        assert ends[-1] == pytest.approx(total, abs=6)


def test_a_delay_grows_with_scale_and_knee() -> None:
    scaled = _responses(DelayServer({"delay": 0.1, "scale": 0.5}, Random(1)), [(0, 0), (1, 0), (2, 0)])
    assert scaled == pytest.approx({0: 100, 1: 150, 2: 200})
    knee = {"delay": 0.1, "knee_start": 1.0, "knee_exp": 1.1}
    assert _responses(DelayServer(knee, Random(1)), [(0, 0), (1, 0), (2, 0)]) == pytest.approx(
        {0: 100, 1: 110, 2: 121}
    )


def test_jitter_is_exponential() -> None:
    server = DelayServer({"delay": 0.1, "jitter": 0.5}, Random(1))
    responses = _responses(server, [(number * 10_000.0, 0) for number in range(2000)])
    assert min(responses.values()) >= 100
    assert sum(responses.values()) / 2000 == pytest.approx(150, rel=0.05)


def test_a_server_defers_above_its_bounds() -> None:
    def results(settings: dict[str, float], gap_ms: float) -> list[str]:
        server = DelayServer({"delay": 0.1, **settings}, Random(1))
        for number in range(4):
            server.add(number * gap_ms * MS, number, 0.0)
        return [server.pop()[1] for _ in range(server.in_flight)]

    assert results({"defer_above": 2.0}, 1) == ["answered", "answered", "deferred", "deferred"]
    assert results({"defer_rate": 3.0}, 1) == ["answered"] * 3 + ["deferred"]
    assert results({"defer_rate": 3.0}, 500) == ["answered"] * 4
    assert results({"drop_above": 2.0}, 1) == ["answered"] * 2


def test_a_server_with_a_delay_has_no_threads() -> None:
    with pytest.raises(NotImplementedError):
        DelayServer({"delay": 0.1}, Random(1)).set_threads(0.0, 2)
