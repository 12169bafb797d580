"""One nginx on a clock that the test turns, for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.nginx.engines.shared.shared_harness import Place
from tests.servers import BASE_US, DrivenClock


@pytest.fixture(scope="module")
def driven_place() -> Iterator[Place]:
    with DrivenClock(BASE_US) as clock, Place(driven=clock) as place:
        yield place
        assert "[error]" not in place.nginx.log


@pytest.fixture
def place(driven_place: Place) -> Place:
    driven_place.at(BASE_US)
    return driven_place
