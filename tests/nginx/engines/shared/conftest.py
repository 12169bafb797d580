"""One nginx on a clock that the test turns, for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.nginx.engines.shared.shared_harness import SharedDictNginx
from tests.servers import BASE_US, DrivenClock


@pytest.fixture(scope="module")
def driven_nginx() -> Iterator[SharedDictNginx]:
    with DrivenClock(BASE_US) as clock, SharedDictNginx(driven=clock) as nginx:
        yield nginx
        assert "[error]" not in nginx.nginx.log


@pytest.fixture
def nginx(driven_nginx: SharedDictNginx) -> SharedDictNginx:
    driven_nginx.at(BASE_US)
    return driven_nginx
