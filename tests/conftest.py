"""Real servers for every test that names one.

    redis_server, valkey_server     on the real clock
    driven_redis, driven_valkey     on a clock that the test turns: driven_redis.clock.advance_us(...)
    server, driven_server           the same, once for each kind

They are started once for the session. Each test finds them running, empty, and the driven ones at BASE_US: no
fixture of the function's scope is involved, so they may be used under @given. A test that stops or kills a
server should start one of its own (tests.servers.RedisServer).
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from tests.servers import BASE_US, KINDS, DrivenClock, Kind, RedisServer

# A busy machine is no counter-example.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

SERVER_FIXTURES = {
    *("redis_server", "valkey_server", "server"),
    *("driven_redis", "driven_valkey", "driven_server"),
}

_running: list[RedisServer] = []


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    yield from _session_server("redis", driven=False)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    yield from _session_server("valkey", driven=False)


@pytest.fixture(scope="session")
def driven_redis() -> Iterator[RedisServer]:
    yield from _session_server("redis", driven=True)


@pytest.fixture(scope="session")
def driven_valkey() -> Iterator[RedisServer]:
    yield from _session_server("valkey", driven=True)


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest) -> RedisServer:
    running: RedisServer = request.getfixturevalue(f"{request.param}_server")
    return running


@pytest.fixture(scope="session", params=KINDS)
def driven_server(request: pytest.FixtureRequest) -> RedisServer:
    running: RedisServer = request.getfixturevalue(f"driven_{request.param}")
    return running


def pytest_itemcollected(item: pytest.Item) -> None:
    if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("servers")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("servers"):
        for running in _running:
            _make_as_new(running)


def _session_server(kind: Kind, *, driven: bool) -> Iterator[RedisServer]:
    with ExitStack() as stack:
        clock = stack.enter_context(DrivenClock(BASE_US)) if driven else None
        started = stack.enter_context(RedisServer(kind, driven=clock))
        _running.append(started)
        stack.callback(_running.remove, started)
        yield started


def _make_as_new(server: RedisServer) -> None:
    if server.driven is not None:
        server.driven.set_us(BASE_US)
    if server.alive:
        server.flush()
    else:
        server.start()
