"""One nginx on a clock that the test turns, for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.nginx.engines.shared.shared_harness import SharedDictNginx
from tests.servers import BASE_US, DrivenClock


@pytest.fixture(scope="module")
def driven_place() -> Iterator[SharedDictNginx]:
    with DrivenClock(BASE_US) as clock, SharedDictNginx(driven=clock) as place:
        yield place
        assert "[error]" not in place.nginx.log


@pytest.fixture
def place(driven_place: SharedDictNginx) -> SharedDictNginx:
    driven_place.at(BASE_US)
    return driven_place
