"""One luajit for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.nginx.lua import Lua


@pytest.fixture(scope="module")
def lua() -> Iterator[Lua]:
    running = Lua()
    yield running
    running.close()
