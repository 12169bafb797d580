"""Two computations at once give the results of both, whatever happens to the child."""

from __future__ import annotations

import os
import threading

import pytest

from headgate.traffic.run_in_parallel import run_both


def test_in_two_processes() -> None:
    parent, other = run_both(os.getpid, os.getpid)
    assert parent == os.getpid()
    assert (other != parent) is ((os.cpu_count() or 1) > 1 and threading.active_count() == 1)


def test_a_large_result() -> None:
    assert run_both(lambda: 1, lambda: list(range(300_000)))[1][-1] == 299_999


def test_a_child_that_is_killed_is_replaced() -> None:
    parent = os.getpid()

    def compute() -> str:
        if os.getpid() != parent:
            os.kill(os.getpid(), 9)
        return "here"

    assert run_both(lambda: 1, compute) == (1, "here")


def test_errors_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_both(lambda: 1 // 0, lambda: 1)
    with pytest.raises(ZeroDivisionError):
        run_both(lambda: 1, lambda: 1 // 0)


def test_with_threads_one_after_the_other() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert run_both(os.getpid, os.getpid) == (os.getpid(), os.getpid())
    finally:
        end.set()
        thread.join()
