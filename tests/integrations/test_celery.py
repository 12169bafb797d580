"""Real Celery workers on a real Redis keep limits together, and block for none of them."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import pytest
from celery import Celery, _state, chain, chord, signals
from celery.exceptions import Ignore, TaskRevokedError
from celery.exceptions import TimeoutError as ResultTimeout

from headgate.algorithms.limit import SECOND
from headgate.errors import InvalidRule, InvalidSetting, RateLimited
from headgate.integrations.celery import limit, max_hop, rate_limits
from headgate.integrations.task_limits import MAX_HOP_S, WaitingTask
from headgate.limiter import Limiter
from tests.integrations.task_workers import (
    APPLICATION,
    PATIENCE_S,
    TaskClient,
    runs,
    task_client,
    wait_for_runs,
    workers,
)
from tests.servers import RedisServer
from tests.servers.wait_until import until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ORDER_MARGIN_S = 0.05


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def client(broker: RedisServer) -> Iterator[TaskClient]:
    """A client of two workers with two processes each."""
    with workers(broker, 2, processes=2), task_client(broker) as running:
        yield running


def test_two_workers_keep_one_limit(broker: RedisServer, client: TaskClient) -> None:
    began_at = time.time()
    for number in range(21):
        client.send("paced", number)
    done = sorted(wait_for_runs(broker, 21, "paced"), key=lambda run: run.at)
    assert {run.argument for run in done} == set(range(21))
    # Late is possible on a busy machine, early is not.
    early = [run for place, run in enumerate(done) if run.at < began_at + place / 10 - ORDER_MARGIN_S]
    assert not early
    assert len({run.process for run in done}) > 1


def test_places_are_in_the_order_of_arrival(broker: RedisServer, client: TaskClient) -> None:
    with Limiter("1/s burst 1", broker.url, name=f"{APPLICATION}.ordered") as counter:
        for number in range(4):
            _send_and_wait_for_its_place(client, "ordered", number, counter)
    assert [run.argument for run in wait_for_runs(broker, 4, "ordered")] == list(range(4))


def test_a_task_that_waits_is_delivered_twice_and_no_more(broker: RedisServer, client: TaskClient) -> None:
    """Once to reserve its place, and once to begin at it."""
    sent_at = time.time()
    for number in range(3):
        client.send("delivered", number)
    done = sorted(wait_for_runs(broker, 3, "delivered"), key=lambda run: run.at)
    assert all(run.at >= sent_at + 2 * place - ORDER_MARGIN_S for place, run in enumerate(done))
    deliveries = [run.argument for run in runs(broker, "delivery")]
    assert [deliveries.count(run.argument) for run in done] == [1, 2, 2]


def _send_and_wait_for_its_place(client: TaskClient, task: str, argument: int, counter: Limiter) -> None:
    """Sends a task, and waits until a worker has decided it: then it has run, or has a place on the counter."""
    before = _end_of_queue(counter)
    client.send(task, argument)
    until(lambda: None if _end_of_queue(counter) > before + 0.001 else "no place", PATIENCE_S)


def _end_of_queue(counter: Limiter) -> float:
    """Returns the instant at which the last place in the queue of a counter ends."""
    [verdict] = counter.peek("all").verdicts
    return verdict.at_us / SECOND + verdict.reset_after if verdict.reset_after else 0.0


def test_tasks_that_wait_block_no_worker(broker: RedisServer, client: TaskClient) -> None:
    for number in range(20):
        client.send("hourly", number)
    results = [client.send("free", number) for number in range(8)]
    assert [result.get(timeout=PATIENCE_S) for result in results] == list(range(8))
    assert len(wait_for_runs(broker, 1, "hourly")) == 1


def test_each_argument_has_its_limit_and_all_share_another(broker: RedisServer, client: TaskClient) -> None:
    with Limiter("4/hour", broker.url, name="mails") as shared:
        for user in (1, 1, 2, 1, 3):
            _send_and_wait_for_its_place(client, "mail", user, shared)
    wait_for_runs(broker, 3, "mail")
    done = [run.argument for run in runs(broker, "mail")]
    assert sorted(done) == [1, 1, 2], (
        "the third of user 1 waits for its own limit, that of user 3 for the one that all share"
    )


def test_waiting_uses_up_no_retries(broker: RedisServer, client: TaskClient) -> None:
    sent_at = time.time()
    results = [client.send("retried", number) for number in range(2)]
    assert [result.get(timeout=PATIENCE_S) for result in results] == [0, 1]
    done = runs(broker, "retried")
    assert sorted((run.argument, run.retries) for run in done) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert done[-1].at >= sent_at + 5 * 0.5 - ORDER_MARGIN_S, "a retry is a call of its own"
    with pytest.raises(ZeroDivisionError):
        client.send("dividing", 1).get(timeout=PATIENCE_S)
    assert len(runs(broker, "dividing")) == 2


def test_chains_and_chords_go_on(broker: RedisServer, client: TaskClient) -> None:
    two = chain(client.signature("paced", 5), client.signature("paced"), app=client.app)
    assert two().get(timeout=PATIENCE_S) == 5
    header = [client.signature("paced", number) for number in (1, 2, 3)]
    assert chord(header, client.signature("total"), app=client.app)().get(timeout=PATIENCE_S) == 6


def test_a_failed_task_releases_its_slot_and_nobody_shares_one(broker: RedisServer, client: TaskClient) -> None:
    for number in range(3):
        client.send("exclusive", number, 0.5)
    done = wait_for_runs(broker, 6, "begins", "ends")
    assert [run.task for run in done] == ["begins", "ends"] * 3
    assert {run.argument for run in done} == {0, 1, 2}


def test_a_task_that_expires_before_its_place_is_revoked(broker: RedisServer, client: TaskClient) -> None:
    client.send("hourly", 0)
    wait_for_runs(broker, 1, "hourly")
    with pytest.raises(TaskRevokedError, match="expired"):
        client.send("hourly", 1, expires=1).get(timeout=PATIENCE_S)


def test_a_cost_that_never_passes_fails_the_task(client: TaskClient) -> None:
    assert client.send("costly", 2).get(timeout=PATIENCE_S) is None
    with pytest.raises(RateLimited, match="a cost of 3 is too large, at most 2 can ever pass"):
        client.send("costly", 3).get(timeout=PATIENCE_S)
    with pytest.raises(TypeError, match="unexpected keyword argument 'unit'"):
        client.app.send_task(f"{APPLICATION}.costly", kwargs={"unit": 1}).get(timeout=PATIENCE_S)


def test_a_delay_beyond_the_visibility_timeout_is_delivered_once(broker: RedisServer) -> None:
    with (
        RedisServer() as server,
        workers(server, 2, processes=1, VISIBILITY_TIMEOUT="5", ACKS_LATE="1"),
        task_client(server) as client,
    ):
        sent_at = time.time()
        client.send("slow", 1)
        client.send("slow", 2)
        done = wait_for_runs(server, 2, "slow")
        assert done[1].at >= sent_at + 7 - ORDER_MARGIN_S
        time.sleep(3)  # what was delivered again would run now
        assert sorted(run.argument for run in runs(server, "slow")) == [1, 2]


def test_the_slot_of_a_worker_that_was_killed_comes_back() -> None:
    with RedisServer() as server, task_client(server) as client:
        with workers(server, 1, processes=1) as [first]:
            client.send("killed", 1, 600)
            [run] = wait_for_runs(server, 1, "killed")
            first.kill()
            first.wait()
            with suppress(ProcessLookupError):  # the kernel kills it as well, when its parent is gone
                os.kill(run.process, signal.SIGKILL)
        with workers(server, 1, processes=1):
            client.send("killed", 2, 0)
            assert [run.argument for run in wait_for_runs(server, 2, "killed")] == [1, 2]


def test_tasks_wait_while_the_engine_is_down() -> None:
    with (
        RedisServer() as server,
        RedisServer() as engine,
        workers(server, 1, processes=1, ENGINE=engine.url),
        task_client(server) as client,
    ):
        client.send("paced", 1).get(timeout=PATIENCE_S)
        engine.kill()
        result = client.send("paced", 2)
        assert client.send("free", 3).get(timeout=PATIENCE_S) == 3
        assert not result.ready()
        engine.start()
        assert result.get(timeout=PATIENCE_S) == 2


def test_the_place_of_a_revoked_task_is_given_back(broker: RedisServer, client: TaskClient) -> None:
    with Limiter("100/day log", broker.url, name="revocable#1") as counter:
        sent = {number: client.send("revocable", number) for number in (1, 2)}
        until(lambda: None if counter.peek("all").remaining == 98 else "two calls", PATIENCE_S)
        [run] = wait_for_runs(broker, 1, "revocable")
        revoked = sent[3 - run.argument]
        client.app.control.revoke(revoked.id)
        with pytest.raises(TaskRevokedError, match="revoked"):
            revoked.get(timeout=PATIENCE_S)
        until(lambda: None if counter.peek("all").remaining == 99 else "given back", PATIENCE_S)
    assert len(runs(broker, "revocable")) == 1


def test_results_never_call_the_server_when_they_are_collected(
    broker: RedisServer, client: TaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of failed tests, whose tracebacks keep them: in whichever test runs then."""
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: raised.append(failure.exc_value))
    answered: list[Any] = [client.send("free", 1), chain(client.signature("free", 2), app=client.app)()]
    assert [result.get(timeout=PATIENCE_S) for result in answered] == [1, 2]
    with RedisServer() as server, task_client(server) as lonely:
        results: list[Any] = [*answered, *(lonely.send("free", number) for number in range(4))]
        with pytest.raises(ResultTimeout):
            results[-1].get(timeout=0.1)
        channels = [server.call("PUBSUB", "CHANNELS"), broker.call("PUBSUB", "CHANNELS", "celery-task-meta-*")]
        assert channels == [[], []]
        results.append(results)  # only the garbage collector finds a circle
    del results, answered, lonely
    gc.collect()
    assert raised == []


def make_app(**settings: Any) -> Celery:
    app = Celery("made", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(**{"task_always_eager": True, **settings})
    return app


@contextmanager
def run_by_a_worker(task: Any, **request: Any) -> Iterator[None]:
    """Makes a task believe that a worker runs it."""
    delivery_info = {"exchange": "", "routing_key": "mails"}
    task.push_request(called_directly=False, is_eager=False, delivery_info=delivery_info, **request)
    running: Any = vars(_state)["_task_stack"]
    running.push(task)
    try:
        yield
    finally:
        running.pop()
        task.pop_request()


def test_a_message_that_is_put_back_stays_what_it_was() -> None:
    app = make_app(task_always_eager=False)
    limits = rate_limits(app, engine="memory://")
    app.finalize()

    @app.task
    @limit("1/hour", key="number")
    def late(number: int) -> int:
        return number

    given = {"id": "7", "root_id": "1", "parent_id": "1", "group": "g", "retries": 2, "headers": {"x": "y"}}
    with run_by_a_worker(late, args=(1,), kwargs={}, **given):
        assert late.run(1) == 1
    before = time.time()
    with run_by_a_worker(late, args=(1,), kwargs={}, **given), pytest.raises(Ignore):
        late.run(1)
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("mails").get_nowait()
        message.ack()
    assert {name: message.headers[name] for name in (*given, "x") if name != "headers"} == {
        **{name: value for name, value in given.items() if name != "headers"},
        "x": "y",
    }
    waiting = WaitingTask.from_json(message.headers["headgate"])
    assert before + 3590 < waiting.at < time.time() + 3600
    hop = datetime.fromisoformat(message.headers["eta"]).timestamp() - before
    assert 890 < hop < 990, "an hour is made in four hops"
    limits.close()


def test_a_task_whose_application_has_no_engine_says_so() -> None:
    app = make_app()

    @app.task
    @limit("1/hour")
    def forgotten() -> None: ...

    with (
        run_by_a_worker(forgotten),
        pytest.raises(InvalidSetting, match=r"call rate_limits\(app, engine=\.\.\.\)"),
    ):
        forgotten.run()


class StartingWorker:
    """Stands for the worker that sends the signal worker_init."""

    def __init__(self, app: Celery) -> None:
        self.app = app


def test_a_worker_does_not_start_with_limits_that_contradict_each_other() -> None:
    app = make_app()
    rate_limits(app, engine="memory://")

    @app.task
    @limit("1/hour", name="shared")
    def one() -> None: ...

    @app.task
    @limit("2/hour", name="shared")
    def two() -> None: ...

    with pytest.raises(SystemExit, match='The limit "shared" is written differently at'):
        signals.worker_init.send(sender=StartingWorker(app))


def test_calls_that_no_worker_makes_are_not_limited() -> None:
    app = make_app()
    rate_limits(app, engine="memory://")

    @app.task
    @limit("1/hour")
    def task(number: int) -> int:
        return number

    assert [task(1), task.run(2), task.delay(3).get(), task.apply((4,)).get()] == [1, 2, 3, 4]


def test_a_decorated_task_keeps_its_arguments() -> None:
    app = make_app()

    @app.task
    @limit("1/hour", key="number")
    @limit("2/hour")
    def task(number: int) -> int:
        """Doubles."""
        return number * 2

    assert (task.__name__, task.__doc__, task(number=2)) == ("task", "Doubles.", 4)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        task.delay()


def test_a_message_waits_for_half_of_what_the_broker_allows() -> None:
    assert max_hop(make_app()) == MAX_HOP_S == 900
    assert max_hop(make_app(broker_transport_options={"visibility_timeout": 60})) == 30
    assert max_hop(make_app(broker_transport_options={"visibility_timeout": 86400})) == MAX_HOP_S


def test_what_is_set_wrong_fails_when_the_application_is_made() -> None:
    app = make_app()
    with pytest.raises(InvalidSetting, match="engine= is missing"):
        rate_limits(app)
    with pytest.raises(InvalidSetting, match=r"limts= is not a setting .* Did you mean limits=\?"):
        rate_limits(app, engine="memory://", limts=[])  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="limits the tasks of a Celery application, not 'shop'"):
        rate_limits("shop", engine="memory://")  # type: ignore[arg-type]
    rate_limits(app, engine="memory://")
    with pytest.raises(InvalidSetting, match="has limits already"):
        rate_limits(app, engine="memory://")
    with pytest.raises(InvalidRule, match=r"write it below @app\.task"):

        @limit("5/s")
        @app.task
        def above() -> None: ...

    with pytest.raises(
        InvalidRule, match=r'"below" has no argument "user" to be limited by\. Did you mean users\?'
    ):

        @app.task
        @limit("5/s", key="user")
        def below(users: list[int]) -> None: ...
