"""The pytest plugin: fixtures for tests of programs that headgate limits. It is installed with headgate.

    headgate_clock         a ManualClock: pass it to a limiter or an application as `clock`
    headgate_limits_off    lets every call of the process pass for the length of a test, without counting

It imports headgate when a fixture is used: test runs without limits do not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headgate import ManualClock


@pytest.fixture
def headgate_clock() -> ManualClock:
    """A clock that moves when the test advances it: pass it to a limiter or an application as `clock`."""
    from headgate import ManualClock

    return ManualClock()


@pytest.fixture
def headgate_limits_off() -> Iterator[None]:
    """Lets every call of the process pass for the length of the test, without counting."""
    from headgate.testing import limits_off

    with limits_off():
        yield
