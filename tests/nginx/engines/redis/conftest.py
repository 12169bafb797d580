"""One nginx for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.nginx.engines.redis.redis_harness import Gate


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    with Gate() as running:
        yield running
