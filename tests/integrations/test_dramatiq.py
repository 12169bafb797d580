"""Real Dramatiq workers on a real Redis keep limits together, and block for none of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import RedisBackend

from headgate.errors import InvalidRule, InvalidSetting
from headgate.integrations.dramatiq import ActorLimits, limit
from tests.integrations.task_workers import PATIENCE_S, dramatiq_workers, runs, wait_for_runs
from tests.servers import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.slow]

EARLY_S = 0.05
TIMEOUT_MS = int(PATIENCE_S * 1000)


make_broker: Any = RedisBroker
make_results: Any = Results


class ActorClient:
    """Sends messages to actors by name."""

    def __init__(self, server: RedisServer) -> None:
        self.backend: Any = RedisBackend(url=server.url)
        self.broker = make_broker(url=server.url)
        self.broker.add_middleware(make_results(backend=self.backend))

    def send(self, actor: str, *args: Any) -> dramatiq.Message[Any]:
        self.broker.declare_queue("default")
        message: dramatiq.Message[Any] = self.broker.enqueue(dramatiq.Message("default", actor, args, {}, {}))
        return message

    def result(self, message: dramatiq.Message[Any]) -> Any:
        return message.get_result(backend=self.backend, block=True, timeout=TIMEOUT_MS)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RedisServer) -> Iterator[ActorClient]:
    """A client of two workers with two processes each."""
    with dramatiq_workers(server, 2):
        made = ActorClient(server)
        yield made
        made.broker.close()


def test_two_workers_keep_one_limit_and_results_arrive_once(server: RedisServer, client: ActorClient) -> None:
    began_at = time.time()
    sent = [client.send("paced", number) for number in range(11)]
    assert [client.result(each) for each in sent] == list(range(11))
    done = sorted(runs(server, "paced"), key=lambda run: run.at)
    assert len(done) == 11
    early = [run for place, run in enumerate(done) if run.at < began_at + place / 10 - EARLY_S]
    assert not early


def test_messages_that_wait_block_no_worker(server: RedisServer, client: ActorClient) -> None:
    for number in range(20):
        client.send("hourly", number)
    sent = [client.send("free", number) for number in range(8)]
    assert [client.result(each) for each in sent] == list(range(8))
    assert len(wait_for_runs(server, 1, "hourly")) == 1


def test_each_argument_has_its_limit(server: RedisServer, client: ActorClient) -> None:
    for user in (1, 1, 1, 2):
        client.send("mail", user)
    wait_for_runs(server, 3, "mail")
    client.result(client.send("free", 1))
    assert sorted(run.argument for run in runs(server, "mail")) == [1, 1, 2]


def test_waiting_uses_up_no_retries(server: RedisServer, client: ActorClient) -> None:
    sent_at = time.time()
    for number in range(2):
        client.send("retried", number)
    done = wait_for_runs(server, 6, "retried")
    assert sorted((run.argument, run.retries) for run in done) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert done[-1].at >= sent_at + 5 * 0.5 - EARLY_S, "a retry is a call of its own"


def test_a_failed_message_releases_its_slot_and_nobody_shares_one(
    server: RedisServer, client: ActorClient
) -> None:
    for number in range(3):
        client.send("exclusive", number)
    done = wait_for_runs(server, 6, "begins", "ends")
    assert [run.task for run in done] == ["begins", "ends"] * 3


def test_a_cost_that_never_passes_is_rejected(server: RedisServer, client: ActorClient) -> None:
    with pytest.raises(ResultFailure, match="a cost of 3 is too large, at most 2 can ever pass"):
        client.result(client.send("costly", 3))
    client.result(client.send("costly", 2))
    assert [run.argument for run in runs(server, "costly")] == [2]


def declare(option: Any, **settings: Any) -> None:
    broker = StubBroker()
    broker.add_middleware(ActorLimits(engine="memory://", **settings))

    @dramatiq.actor(broker=broker, limit=option)
    def send(user_id: int) -> None: ...


def test_what_is_set_wrong_fails_when_the_actor_is_declared() -> None:
    with pytest.raises(InvalidRule, match='"send" has no argument "user" to be limited by'):
        declare(limit("5/s", key="user"))
    with pytest.raises(InvalidRule, match='"5/ss" is not a limit'):
        declare("5/ss")
    with pytest.raises(InvalidRule, match='limit= has limits such as "1000/minute", not 5'):
        declare([5])
    with pytest.raises(InvalidSetting, match="engine= is missing"):
        ActorLimits()
    with pytest.raises(ValueError, match="limit"):

        @dramatiq.actor(broker=StubBroker(), limit="5/s")
        def without_middleware() -> None: ...
