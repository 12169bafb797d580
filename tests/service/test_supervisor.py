"""The service's processes: started, stopped, killed and replaced."""

import http.client
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service, reply_of

BOOK = {"rules": [{"name": "all", "limit": "1000000/day fixed"}]}
# Answered after a second: the second call finds the queue not empty.
SLOW = {"rules": [{"name": "slow", "limit": "1/s queue 5"}]}
FORWARDED = {
    "X-Forwarded-Method": "GET",
    "X-Forwarded-Uri": "/",
    "X-Forwarded-Host": "shop.example",
    "X-Forwarded-For": "192.0.2.7",
}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_finishes_begun_requests(number: signal.Signals) -> None:
    with Service(SLOW) as service:
        assert service.send_request("GET", "/auth/forward", headers=FORWARDED).status == 200
        with service.connection() as line:
            began = time.monotonic()
            line.request("GET", "/auth/forward", headers=FORWARDED)
            time.sleep(0.2)
            service.send_signal(number)
            assert reply_of(line).status == 200
            assert time.monotonic() - began > 0.5
        assert service.wait() == 0
        assert "stopping" in service.output


def test_requests_longer_than_the_drain_time_are_dropped() -> None:
    endless = {"rules": [{"name": "slow", "limit": "1/minute queue 5"}]}
    with Service(endless, drain="300ms") as service, service.connection() as line:
        service.send_request("GET", "/auth/forward", headers=FORWARDED)
        line.request("GET", "/auth/forward", headers=FORWARDED)
        time.sleep(0.1)
        began = time.monotonic()
        service.send_signal(signal.SIGTERM)
        assert service.wait() == 0
        assert time.monotonic() - began < 5
        reply = reply_of(line)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert "Traceback" not in service.output


def test_several_workers_count_together(redis: RedisServer) -> None:
    book = {"rules": [{"name": "few", "key": "user", "limit": "20/day fixed", "missing": "deny"}]}
    with Service(book, engine=redis.url, workers=2) as service:
        assert len(service.worker_pids) == 2
        passed = sum(service.check(user="ann")["allowed"] for _ in range(40))
        assert passed == 20


def test_a_killed_worker_is_replaced_and_only_its_clients_notice(redis: RedisServer) -> None:
    with Service(BOOK, engine=redis.url, workers=2) as service:
        seen: Counter[str] = Counter()
        over = threading.Event()

        def send_request() -> None:
            while not over.is_set():
                try:
                    seen["passed" if service.check()["allowed"] else "refused"] += 1
                except (http.client.HTTPException, OSError):
                    seen["lost"] += 1

        clients = [threading.Thread(target=send_request) for _ in range(4)]
        for client in clients:
            client.start()
        until(lambda: None if seen["passed"] > 50 else "not yet under load", 20)
        victim = service.worker_pids[0]
        time.sleep(max(0.0, 5.2 - (time.monotonic() - service.started_at)))  # old enough to be replaced
        os.kill(victim, signal.SIGKILL)
        until(lambda: "still there" if victim in service.worker_pids else None, 10)
        until(lambda: None if len(service.worker_pids) == 2 else "not replaced", 10)
        before = seen["passed"]
        until(lambda: None if seen["passed"] > before + 50 else "no more answers", 20)
        over.set()
        for client in clients:
            client.join()
        assert seen["lost"] <= 4, "each client loses what was under way, at most"
        assert seen["refused"] == 0
        assert "died" in service.output


def test_a_worker_that_cannot_start_ends_the_service(redis: RedisServer) -> None:
    with pytest.raises(RuntimeError, match=r"it ended with 2: .*rules\.yaml:1"):
        Service("rules: [{name: x, limit: lots}]", engine=redis.url, workers=2).__enter__()
    with pytest.raises(RuntimeError, match=r"it ended with 2: .*rules\.yaml:1"):
        Service("rules: [{name: x, limit: lots}]").__enter__()


def test_two_services_do_not_share_an_address() -> None:
    with Service(BOOK) as first:
        with pytest.raises(
            RuntimeError, match=r"it ended with 2: .*cannot listen at .*: Address already in use\."
        ):
            Service(BOOK, http=first.http).__enter__()
        with pytest.raises(RuntimeError, match=r"cannot listen at"):
            Service(BOOK, grpc=first.grpc).__enter__()


def test_a_socket_in_the_file_system() -> None:
    service = Service(BOOK)
    path = service.folder / "http.sock"
    service.settings["http"] = f"unix:{path}"
    with service:
        assert path.is_socket()
    assert not path.exists()


def test_a_changed_book_is_followed_and_a_broken_one_is_not() -> None:
    with Service(BOOK) as service:
        assert service.check()["limit"] == "1000000/day fixed"
        service.write({"rules": [{"name": "all", "limit": "7/day fixed"}]})
        until(lambda: None if service.check()["limit"] == "7/day fixed" else "the old book", 10)
        service.write("rules: [{name: all, limit: lots}]")
        until(lambda: None if "rules.yaml:1" in service.output else "not told", 10)
        assert service.check()["limit"] == "7/day fixed"


@pytest.mark.parametrize("workers", [1, 2])
def test_attributes_that_look_misspelled_are_logged_once_for_all_workers(redis: RedisServer, workers: int) -> None:
    book = {"rules": [{"name": "nobody", "key": "ip", "missing": "skip", "limit": "1/s"}]}
    with Service(book, engine=redis.url, workers=workers) as service:
        assert service.output.count("no gateway sets") == 1
        assert f'{service.book}:1: rule "nobody": no gateway sets the attribute "ip"' in service.output
        service.write({"rules": [*book["rules"], {"name": "all", "limit": "1/s"}]})
        until(lambda: None if service.check()["rule"] == "all" else "the book is not followed", 10)
        until(lambda: None if service.output.count("no gateway sets") == 2 else service.output, 10)
        time.sleep(1)  # in which others would follow: each worker looks more than twice
        assert service.output.count("no gateway sets") == 2
