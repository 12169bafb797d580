"""Real servers for every test that names one.

    redis_server, valkey_server     on the real clock
    driven_redis, driven_valkey     on a clock that the test turns: driven_redis.clock.advance_us(...)
    server, driven_server           the same, once for each kind
    cluster, valkey_cluster         three masters with a replica each
    sentinels                       a Redis master and a replica, watched by three sentinels

They are started once for the session. Each test finds them running, empty, and the driven ones at BASE_US: no
fixture of the function's scope is involved, so they may be used under @given. A test that stops or kills a
server should start one of its own (tests.servers: RedisServer, Cluster, Sentinels).
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import BASE_US, KINDS, Cluster, DrivenClock, Kind, RedisServer, Sentinels

# A busy machine is no counter-example.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

# A run in the background may have been told to ignore it, and all that it starts would as well.
signal.signal(signal.SIGINT, signal.default_int_handler)

SERVER_FIXTURES = {
    *("redis_server", "valkey_server", "server"),
    *("driven_redis", "driven_valkey", "driven_server"),
    *("cluster", "valkey_cluster", "sentinels"),
}

BROWSER_TESTS = Path(__file__).parent / "dashboard" / "browser"

# Tests that load the machine, or measure how long something takes.
ALONE = (
    "tests/chaos/",
    "tests/engines/redis/test_deadlines.py",
    "tests/integrations/test_outbound_processes.py",
    "tests/nginx/engines/test_fallback.py",
    "tests/nginx/engines/test_load_shedding.py",
    "tests/nginx/engines/test_worker_clocks.py",
    "tests/nginx/test_compare_with_limit_req.py",
    "tests/nginx/test_demo.py",
    "tests/nginx/test_faults_under_load.py",
)

# Files that take a minute or two, mostly by waiting: they begin first, so that the others need not wait for them.
LONG = (
    "tests/integrations/test_celery.py",
    "tests/service/envoy/test_two_envoys.py",
    "tests/service/test_faults_under_load.py",
    "tests/engines/test_slot_renewal.py",
    "tests/engines/redis/test_sync_pool.py",
    "tests/nginx/engines/test_split_limits.py",
    "tests/service/admin/test_requests.py",
)

# Tests that only compute, most of them by drawn examples: they run beside those that want the machine alone, at
# the lowest priority, where nobody notices them.
COMPUTE = (
    *("tests/algorithms/", "tests/contract/", "tests/http/", "tests/parity/", "tests/repo_rules/"),
    *("tests/cli/test_all_commands.py", "tests/cli/test_flash_sale.py", "tests/test_refund_without_decision.py"),
    *(f"tests/enforcement/test_{name}.py" for name in ("check", "batched_calls", "stored_decision")),
    *(f"tests/engines/layers/test_{name}.py" for name in ("fallback_laws", "fallback_by_rule", "limit_share")),
    *(f"tests/engines/layers/test_{name}.py" for name in ("prefetch_laws", "settlement_by_rule")),
    *("tests/engines/memory/test_slot_table.py", "tests/engines/redis/test_pool_schedules.py"),
    "tests/gateway/test_bundle.py",
    *(f"tests/nginx/engines/redis/test_{name}.py" for name in ("commands", "resp")),
    *(f"tests/nginx/engines/test_{name}.py" for name in ("limit_share", "prefetched_units", "shed_rate")),
    *("tests/nginx/http/", "tests/nginx/rules/test_calendar.py", "tests/nginx/rules/test_match_vectors.py"),
    *("tests/rules/imports/", "tests/rules/matching/"),
    *(f"tests/rules/parsing/test_{name}.py" for name in ("document_tree", "load")),
    *(f"tests/rules/test_{name}.py" for name in ("attributes", "condition", "ip_networks", "json_schema")),
    *(f"tests/rules/test_{name}.py" for name in ("keys", "pattern", "serialization")),
    *(f"tests/service/envoy/test_{name}.py" for name in ("messages", "request", "response")),
    *("tests/service/test_forward_auth.py", "tests/service/test_request_cache.py"),
    *(f"tests/telemetry/test_{name}.py" for name in ("distinct_keys", "hot_keys")),
)

# Long enough that a busy machine does not look like a dead node.
PATIENCE_MS = 5000

Deployment = TypeVar("Deployment", RedisServer, Cluster, Sentinels)

_running: list[RedisServer | Cluster | Sentinels] = []


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


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    yield from _session(Cluster("redis", node_timeout_ms=PATIENCE_MS))


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[Cluster]:
    yield from _session(Cluster("valkey", node_timeout_ms=PATIENCE_MS))


@pytest.fixture(scope="session")
def sentinels() -> Iterator[Sentinels]:
    yield from _session(Sentinels("redis", down_after_ms=PATIENCE_MS))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files out in which no test has the mark that is asked for: to import them all takes half a minute."""
    # A browser's driver keeps an event loop running, beside which no other can run: make test-browser.
    if collection_path == BROWSER_TESTS and not any("dashboard/browser" in each for each in config.args):
        return True
    folders = {"alone": ALONE, "computes": COMPUTE}.get(config.option.markexpr)
    if folders is None or collection_path.is_dir():
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return None if path.startswith((*folders, "tests/__init__")) else True


def pytest_itemcollected(item: pytest.Item) -> None:
    if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("servers")
    if item.nodeid.startswith(ALONE):
        item.add_marker("alone")
    elif item.nodeid.startswith(COMPUTE) and not item.get_closest_marker("servers"):
        item.add_marker("computes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("servers"):
        for running in _running:
            _make_as_new(running)


def _session_server(kind: Kind, *, driven: bool) -> Iterator[RedisServer]:
    with ExitStack() as stack:
        clock = stack.enter_context(DrivenClock(BASE_US)) if driven else None
        yield from _session(RedisServer(kind, driven=clock))


def _session(deployment: Deployment) -> Iterator[Deployment]:
    with deployment as started:
        _running.append(started)
        try:
            yield started
        finally:
            _running.remove(started)


def _make_as_new(running: RedisServer | Cluster | Sentinels) -> None:
    if not isinstance(running, RedisServer):
        running.heal()
        running.flush()
        return
    if running.driven is not None:
        running.driven.set_us(BASE_US)
    if running.alive:
        running.flush()
    else:
        running.start()
