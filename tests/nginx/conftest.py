"""One luajit for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.nginx.rules.luajit_process import Lua


@pytest.fixture(scope="module")
def lua() -> Iterator[Lua]:
    running = Lua()
    yield running
    running.close()
