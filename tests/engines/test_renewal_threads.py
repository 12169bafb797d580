"""The threads that renew slots: one always waits for the slot that is due next, even if others hang."""

import time
from collections.abc import Callable
from threading import Event

from headgate.slot_renewal import Holding, SlotHold, _RenewalThreads
from tests.servers.wait_until import until

SURE_S = 20.0


def holding(renew: Callable[[], object], due_s: float) -> Holding:
    return Holding(SlotHold("A slot", ttl=3 * due_s), renew, release=lambda: True)


def hang_until(let_go: Event, hangs: Event) -> Callable[[], object]:
    def renew() -> None:
        hangs.set()
        let_go.wait(SURE_S)

    return renew


def test_a_waiting_thread_learns_of_the_next_due_when_another_one_hangs() -> None:
    """Two idle threads that nobody needs: the one that is woken for a due takes it and hangs. The other one was
    asleep when the next due was added, and must not sleep on (it did, for up to five seconds)."""
    threads = _RenewalThreads()
    let_go, both = Event(), [Event(), Event()]
    first = [holding(hang_until(let_go, hangs), 0.05) for hangs in both]
    for each in first:
        threads.add(each, 0.05)
    assert all(hangs.wait(SURE_S) for hangs in both)  # so there are two threads, and both are busy
    for each in first:
        threads.remove(each)
    let_go.set()
    until(lambda: None if threads._waiting == 2 else "still busy", SURE_S)
    time.sleep(0.2)  # they are asleep
    let_go, hangs, renewed = Event(), Event(), Event()
    second = [holding(hang_until(let_go, hangs), 0.1), holding(renewed.set, 0.2)]
    began = time.monotonic()
    try:
        threads.add(second[0], 0.1)
        threads.add(second[1], 0.2)
        assert hangs.wait(SURE_S)
        assert renewed.wait(SURE_S)
        assert time.monotonic() - began < 3.0
    finally:
        let_go.set()
        for each in second:
            threads.remove(each)
