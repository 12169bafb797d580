"""Two workers at once: exactly the limit passes, whatever becomes of a worker."""

import http.client
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import Limit
from headgate.algorithms.token_bucket import TokenBucket
from headgate.limit_syntax import parse
from tests.nginx.engines.shared.shared_harness import SharedDictError, SharedDictMeter, SharedDictNginx
from tests.servers.wait_until import until

DAY_S = 86_400

# A limit that gives nothing back while the test runs; of how many keys; and how many pass in all.
LIMITS: dict[str, tuple[Limit, int, int]] = {
    "token_bucket": (TokenBucket(1, DAY_S, 20_002), 1, 20_002),
    "token_bucket of many keys": (TokenBucket(1, DAY_S, 50), 200, 10_000),
    "token_bucket in grains": (TokenBucket(7, 30 * DAY_S, 2_001), 3, 6_003),
    "leaky_bucket": (LeakyBucket(1, 1000, 20_001), 1, 20_002),
    "fixed_window": (FixedWindow(10_001, 300 * DAY_S), 1, 10_001),
    "sliding_window": (parse("10001/week sliding"), 1, 10_001),
    "sliding_log": (parse("1000/week log"), 3, 3_000),
    "smooth": (parse("1/hour smooth"), 5_000, 5_000),
}


@pytest.mark.parametrize("name", LIMITS)
def test_two_workers_admit_exactly_the_limit(name: str) -> None:
    """A worker may happen to do it all by itself; then it is tried again with other keys."""
    limit, keys, wanted = LIMITS[name]
    batches, times = 40, max(keys, wanted // 20)  # at least twice as many charges as may pass
    with (
        SharedDictNginx(workers=2, hit=SharedDictMeter(limit, "hammered")) as nginx,
        ThreadPoolExecutor(8) as pool,
    ):
        for tried in range(10):

            def hammer(_: int, tried: int = tried) -> tuple[str, int]:
                reply = nginx.nginx.get(f"/hammer?times={times}&keys={keys}&prefix={tried}k")
                assert reply.status == 200, nginx.nginx.log[-2000:]
                return reply.headers["x-worker"], int(reply.body)

            passed = list(pool.map(hammer, range(batches)))
            assert sum(count for _, count in passed) == wanted
            assert hammer(0)[1] == 0, "nothing is left"
            if len({worker for worker, count in passed if count}) == 2:
                return
    pytest.fail("one worker did it all: nothing was shown")


def test_two_workers_charge_two_keys_or_none() -> None:
    """Two of three keys each time: the one that they share passes 3000 times, and so do the others together."""
    meter = SharedDictMeter(TokenBucket(1, DAY_S, 3000), "pairs")
    with SharedDictNginx(workers=2, hit=meter) as nginx, ThreadPoolExecutor(8) as pool:
        for tried in range(10):

            def hammer(_: int, tried: int = tried) -> tuple[str, int]:
                reply = nginx.nginx.get(f"/hammer?times=300&keys=2&prefix={tried}k&pairs=1")
                assert reply.status == 200, nginx.nginx.log[-2000:]
                return reply.headers["x-worker"], int(reply.body)

            passed = list(pool.map(hammer, range(20)))
            assert sum(count for _, count in passed) == 3000
            left = [
                nginx.take(SharedDictMeter(TokenBucket(1, DAY_S, 3000), "pairs"), f"{tried}k{one}", 0)
                for one in range(2)
            ]
            assert sum(outcome.remaining for outcome in left) == 3000
            if len({worker for worker, count in passed if count}) == 2:
                return
    pytest.fail("one worker did it all: nothing was shown")


class TwoWorkerLoad:
    """Takes by several connections, each one after the other, until it is told to end."""

    def __init__(self, nginx: SharedDictNginx, connections: int = 8) -> None:
        self.place, self.connections = nginx, connections
        self.answers: Counter[int] = Counter()  # by status; 0: the connection ended before there was one
        self._lock, self._over = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(connections)]

    def __enter__(self) -> "TwoWorkerLoad":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def seen(self, count: int) -> None:
        """Come back when so many were answered since."""
        before = self.answers.total()
        until(lambda: None if self.answers.total() >= before + count else "too few answers", 60)

    def _run(self) -> None:
        line = http.client.HTTPConnection("127.0.0.1", self.place.nginx.port, timeout=20)
        while not self._over.is_set():
            try:
                line.request("GET", "/hit?key=hot")
                answer = line.getresponse()
                answer.read()
                status = answer.status
            except (OSError, http.client.HTTPException):
                line.close()
                status = 0
            with self._lock:
                self.answers[status] += 1
        line.close()


def test_a_killed_worker_takes_no_count_along() -> None:
    """A request in a killed worker gets no answer, and may be charged: one for each connection and kill."""
    kills = 4
    with SharedDictNginx(workers=2, hit=SharedDictMeter(TokenBucket(1, DAY_S, 4000), "killed")) as nginx:
        with TwoWorkerLoad(nginx) as load:
            for _ in range(kills):
                load.seen(400)
                os.kill(nginx.nginx.worker_pids[0], signal.SIGKILL)
            until(lambda: None if load.answers[429] > 200 else "it still admits", 60)
        assert nginx.nginx.get("/hit?key=hot").status == 429
    lost = load.answers[0]
    assert 4000 - min(lost, kills * load.connections) <= load.answers[200] <= 4000
    assert load.answers[500] == 0
    assert lost, "nobody was in a killed worker: nothing was shown"


def test_a_reload_under_load_loses_no_count() -> None:
    with (
        SharedDictNginx(workers=2, hit=SharedDictMeter(TokenBucket(1, DAY_S, 5000), "reloaded")) as nginx,
        TwoWorkerLoad(nginx) as load,
    ):
        for _ in range(3):
            load.seen(500)
            nginx.nginx.reload()
        until(lambda: None if load.answers[429] > 200 else "it still admits", 60)
    assert load.answers[200] == 5000
    assert load.answers[500] == 0


def test_a_lock_whose_holder_died_is_freed() -> None:
    """The worker dies with the lock. Its key waits for half a second; others do not; and nothing is lost."""
    meter = SharedDictMeter(TokenBucket(1, DAY_S, 5), "left")
    with SharedDictNginx(workers=2, hit=meter) as nginx:
        assert nginx.take(meter, "hot").remaining == 4
        with pytest.raises((OSError, http.client.HTTPException)):
            nginx.call_driver("die", bound_limit=meter.fields, key="hot")
        started = time.monotonic()
        assert nginx.take(meter, "cold").remaining == 4
        cold_s = time.monotonic() - started
        assert nginx.take(meter, "hot").remaining == 3
        hot_s = time.monotonic() - started
        assert [nginx.take(meter, "hot").remaining for _ in range(3)] == [2, 1, 0]
        assert "a worker died while it held" in nginx.nginx.log
    assert cold_s < 0.45 <= hot_s < 5


def test_waits_for_a_dead_lock_keep_their_deadlines() -> None:
    """Deadlines shorter than a dead lock's life: each is kept, and together they find out that it is dead."""
    meter = SharedDictMeter(TokenBucket(1, DAY_S, 5), "left")
    with SharedDictNginx(hit=meter) as nginx:
        with pytest.raises((OSError, http.client.HTTPException)):
            nginx.call_driver("die", bound_limit=meter.fields, key="hot")
        started, troubles = time.monotonic(), []
        while time.monotonic() - started < 10:
            try:
                nginx.decide([(meter, "hot", 1)], deadline=0.02)
                break
            except SharedDictError as trouble:
                troubles.append(str(trouble))
        assert len(troubles) >= 2
        assert all(one.startswith("timeout Other workers held the lock") for one in troubles)
        assert nginx.take(meter, "hot").remaining == 3


def test_where_nobody_may_sleep_one_waits_for_milliseconds() -> None:
    meter = SharedDictMeter(TokenBucket(1, DAY_S, 5), "left")
    with SharedDictNginx(hit=meter) as nginx:
        with pytest.raises((OSError, http.client.HTTPException)):
            nginx.call_driver("die", bound_limit=meter.fields, key="hot")
        nginx.nginx.get("/logged?key=hot")
        until(lambda: None if "logged: " in nginx.nginx.log else "nothing logged", 10)
        assert "logged: trouble timeout Other workers held the lock" in nginx.nginx.log
        time.sleep(0.6)
        nginx.nginx.get("/logged?key=hot")
        until(lambda: None if "logged: 1 4 " in nginx.nginx.log else "nothing passed", 10)
