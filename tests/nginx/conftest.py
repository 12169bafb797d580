"""One luajit for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.nginx.rules.luajit_process import LuajitProcess


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = LuajitProcess()
    yield running
    running.close()
