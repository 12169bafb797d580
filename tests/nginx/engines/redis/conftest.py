"""One nginx for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.nginx.engines.redis.redis_harness import RedisDriverNginx


@pytest.fixture(scope="module")
def gate() -> Iterator[RedisDriverNginx]:
    with RedisDriverNginx() as running:
        yield running
