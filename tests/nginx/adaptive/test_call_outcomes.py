"""The outcome of a request, by the variables of its upstream."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.nginx.adaptive.test_adaptive_parity import DRIVER
from tests.nginx.rules.luajit_process import LuajitProcess

SUCCESS, IGNORED, DROPPED = 0, 1, 2
MS = 1_000_000


@pytest.fixture(scope="module")
def driver() -> Iterator[LuajitProcess]:
    running = LuajitProcess(DRIVER)
    yield running
    running.close()


@pytest.mark.parametrize(
    ("statuses", "times", "is_complete", "expected"),
    [
        ("200", "0.250", True, [SUCCESS, 250 * MS]),
        ("404", "0.001", True, [SUCCESS, MS]),
        ("429", "0.001", True, [SUCCESS, MS]),
        ("500", "0.001", True, [IGNORED, MS]),
        ("101", "9.000", True, [IGNORED, 9000 * MS]),
        ("502", "0.000", True, [DROPPED, 0]),
        ("503", "0.002", True, [DROPPED, 2 * MS]),
        ("504", "60.000", True, [DROPPED, 60_000 * MS]),
        ("504, 200", "1.000, 0.250", True, [SUCCESS, 1250 * MS]),
        ("502, 502", "0.000, 0.000", True, [DROPPED, 0]),
        ("200 : 404", "0.100 : 0.050", True, [SUCCESS, 150 * MS]),
        ("-", "-", True, [IGNORED, 0]),
        ("200", "0.250", False, [IGNORED, 0]),
        ("", "", True, [False, 0]),
        ("", "", False, [False, 0]),
    ],
)
def test_outcome(driver: LuajitProcess, statuses: str, times: str, is_complete: bool, expected: list[Any]) -> None:
    assert driver.call_driver("outcome", statuses=statuses, times=times, is_complete=is_complete) == expected
