"""A child that is forked while other threads are inside an engine works at once, whatever the engine is.

gunicorn's preload, Celery's prefork and multiprocessing fork like this. A lock that a thread of the parent held
stays locked in the child for ever, unless the child gets a new one.
"""

import asyncio
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.algorithms.decision import Charge
from headgate.algorithms.slots import Slots
from headgate.clock import ManualClock
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.layers.fallback.membership import Membership
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.quota_ledger import GrantExpiries
from headgate.engines.url import open_async_engine, open_engine
from headgate.errors import RateLimited
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import RedisServer

# Newer Pythons warn of a fork in a process with threads. That is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

FORKS = 20  # a lock that is not renewed hangs one of the first ten
THREADS = 3
PATIENCE = 20.0  # seconds that a child may take on a busy machine

NODE_RULES = {"rules": [{"name": "node", "limit": "1000000/s", "where": "node"}]}
DEAD = "redis://127.0.0.1:1"  # nobody listens there

Use = Callable[[int], object]


@contextmanager
def busy(use: Use) -> Iterator[None]:
    """Threads that use it all the time, and change often."""
    done = threading.Event()

    def hammer(n: int) -> None:
        while not done.is_set():
            use(n)

    threads = [threading.Thread(target=hammer, args=[n]) for n in range(THREADS)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)


def child(work: Callable[[], object]) -> int:
    """Fork; the child works and ends with 0 if nothing was raised."""
    pid = os.fork()
    if pid:
        return pid
    try:
        faulthandler.dump_traceback_later(PATIENCE / 2, exit=True, file=2)  # says where it hangs
        work()
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def status(pid: int) -> int:
    """Returns how the child ended; one that does not end is killed."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        ended_pid, code = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return os.waitstatus_to_exitcode(code)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL


def forked_amid(use: Use, work: Callable[[], object] | None = None) -> None:
    """Fork again and again while threads use it; each child uses it as well."""
    with busy(use):
        for n in range(FORKS):
            assert status(child(work or (lambda: use(9)))) == 0, f"the child of fork {n} did not come to an end"


AROUND_MEMORY: list[dict[str, Any]] = [{}, {"denial_cache": True}, {"prefetch": "100ms"}]


@pytest.mark.parametrize("around", AROUND_MEMORY)
def test_memory(around: dict[str, Any]) -> None:
    with Limiter("10/s", open_engine("memory://", **around)) as limiter:
        forked_amid(lambda n: limiter.take("key", n % 3 + 1))


def test_memory_with_several_charges() -> None:
    with Limiter("1000000/s", "memory://") as limiter:
        forked_amid(lambda n: limiter.take_all([Charge("a"), Charge("b")]))


def hold(limiter: Limiter) -> None:
    with suppress(RateLimited), limiter.acquire("key"):
        pass


def test_slots_in_memory() -> None:
    with Limiter("2 slots", "memory://") as limiter:

        def hold_both() -> None:
            limiter.acquire("key")
            limiter.acquire("key")

        forked_amid(lambda n: hold(limiter), hold_both)  # what threads of the parent hold, the child does not


@pytest.mark.parametrize("around", AROUND_MEMORY)
def test_awaited_memory(around: dict[str, Any]) -> None:
    limiter = AsyncLimiter("10/s", open_async_engine("memory://", **around))

    async def several() -> None:
        for _ in range(20):
            await limiter.take("key")

    forked_amid(lambda n: asyncio.run(several()))


def test_a_rule_that_is_decided_in_each_node(redis_server: RedisServer) -> None:
    with Limiter.from_rules(NODE_RULES, engine=redis_server.url) as limiter:
        forked_amid(lambda n: limiter.check({}))


@pytest.mark.parametrize(
    "options",
    ["fallback=local&nodes=1", "fallback=local&nodes=1&denial_cache=on&prefetch=100ms", "fallback=deny"],
)
def test_a_fallback_while_the_engine_is_gone(options: str) -> None:
    with Limiter("1000000/s", f"{DEAD}?{options}&deadline=50ms") as limiter:
        forked_amid(lambda n: limiter.take("key"))


def test_slots_of_a_fallback() -> None:
    with Limiter("2 slots", f"{DEAD}?fallback=local&nodes=1&deadline=50ms") as limiter:
        forked_amid(lambda n: hold(limiter))


@pytest.mark.parametrize(
    "options", ["", "&denial_cache=on", "&prefetch=100ms", "&denial_cache=on&prefetch=100ms&fallback=local"]
)
def test_redis(options: str, redis_server: RedisServer) -> None:
    with Limiter("1000/s", f"{redis_server.url}?deadline=20s{options}") as limiter:
        forked_amid(lambda n: limiter.take("key"))


def test_awaited_redis(redis_server: RedisServer) -> None:
    limiter = AsyncLimiter(
        "1000/s", f"{redis_server.url}?deadline=20s&denial_cache=on&prefetch=100ms&fallback=local"
    )

    async def several() -> None:
        for _ in range(20):
            await limiter.take("key")

    forked_amid(lambda n: asyncio.run(several()))


def test_a_quota_ledger_forks_amid_grants(redis_server: RedisServer) -> None:
    with ExitStack() as stack:
        engine = open_engine(f"{redis_server.url}?deadline=20s")
        stack.callback(engine.close)
        ledger = engine.quota_ledger(parse("1000/s"), "rule", 1_000_000, 0)
        forked_amid(lambda n: ledger.grant("key", f"holder {n}", 1, 1_000_000))


def found_by_child(look: Callable[[], Any], lock: AbstractContextManager[Any]) -> Any:
    """Returns what a child sees that is forked while the lock is held."""
    read, write = os.pipe()
    with lock:
        pid = child(lambda: os.write(write, json.dumps(look()).encode()))
    os.close(write)
    assert status(pid) == 0
    with open(read, "rb") as pipe:
        return json.load(pipe)


def stored_state(engine: MemoryEngine) -> dict[str, Any]:
    slots = engine.slots(Slots(2), "slots")
    return {
        "left": engine.meter(parse("10/day"), "limit").decide("key", 0)[1],
        "fence": slots.acquire("key").outcome[-1],
        "override": engine.overrides("rule").get("key"),
        "began": engine.started_us,
    }


def test_a_child_counts_for_itself_from_the_beginning() -> None:
    """Counts and slots are its parent's; overrides are no counts, and no number of a slot comes twice."""
    clock = ManualClock(1_000_000)
    engine = MemoryEngine(clock)
    engine.meter(parse("10/day"), "limit").decide("key", 7)
    fence = engine.slots(Slots(2), "slots").acquire("key").outcome[-1]
    engine.overrides("rule").set("key", "5/s")
    clock.advance(1)
    answers = found_by_child(lambda: stored_state(engine), engine.lock)
    assert answers["left"] == 10
    assert answers["fence"] > fence
    assert answers["override"] == "5/s"
    assert answers["began"] == clock.now_us()
    assert stored_state(engine)["left"] == 3
    assert engine.started_us < clock.now_us()


def test_grant_expiries_survive_a_fork() -> None:
    expiries = GrantExpiries()
    expiries.note("key", 5, 0)

    def look() -> list[int]:
        expiries.note("other", 7, 0)
        return [expiries.until_us("key"), expiries.until_us("other")]

    assert found_by_child(look, expiries._lock) == [5, 7]


def test_a_child_is_one_member_however_many_engines_share_it() -> None:
    members = Membership(lambda _: (1, 0), lambda _: None, interval_s=60)
    engines = [FallbackEngine(MemoryEngine(), members=members) for _ in range(3)]

    def look() -> list[int]:
        beating = sum(thread.name == "headgate-members" for thread in threading.enumerate())
        return [beating, members.count]

    before = members.count
    assert found_by_child(look, nullcontext()) == [1, before + 1]
    for engine in engines:
        engine.close()


def test_a_failing_reset_in_a_child_does_not_stop_the_others() -> None:
    class FailingThread:
        def fail(self) -> None:
            raise RuntimeError("can't start new thread")

    broken = FailingThread()
    on_fork(broken.fail)
    engine = MemoryEngine()
    assert found_by_child(lambda: engine.meter(parse("1/s"), "limit").decide("key", 1)[0], engine.lock)
    del broken


CALLS = """
import sys
from headgate import Charge, Limiter, RateLimited
limiter = Limiter("10/s burst 5", sys.argv[1], pausable=True)
slots = Limiter("2 slots", sys.argv[1])
before = set(sys.modules)
for _ in range(7):
    limiter.take("key")
    limiter.peek("key")
    limiter.take_all([Charge("a"), Charge("b", cost=2)])
limiter.refund(limiter.take("other"))
limiter.take_all([Charge("key"), Charge("b")])
limiter.pause("paused", 5)
limiter.take("paused")
limiter.reset("key")
limiter.reserve("third").cancel()
with slots.acquire("key"):
    pass
print(*sorted(name for name in set(sys.modules) - before if name.startswith("headgate")))
"""
ENGINES = [
    "memory://",
    "",
    "?denial_cache=on&prefetch=100ms&fallback=local",
]


@pytest.mark.parametrize("engine", ENGINES)
def test_calls_load_no_module(engine: str, redis_server: RedisServer) -> None:
    """A child that is forked while a thread of its parent loads a module cannot load that module."""
    url = engine if engine.startswith("memory") else f"{redis_server.url}{engine}"
    ran = subprocess.run([sys.executable, "-c", CALLS, url], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, []), ran.stderr


def test_no_property_takes_a_lock() -> None:
    """functools.cached_property does, before Python 3.12: one for all objects of a class."""
    sources = Path(headgate.__file__).parent.rglob("*.py")
    users = [path.name for path in sources if "cached_property" in path.read_text()]
    assert users == ["lazy_property.py"]
