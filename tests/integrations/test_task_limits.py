"""Calls of tasks that begin at once, that are put back, and what becomes of the places that they reserve."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from headgate.algorithms.limit import SECOND
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import EngineUnavailable, InvalidCharge, InvalidRule, InvalidSetting, RateLimited
from headgate.integrations.task_calls import TaskCall, TaskLimit, read_arguments
from headgate.integrations.task_limits import (
    AFTER_EXPIRY_S,
    MAX_LOOK_AGAIN_S,
    PutBack,
    StartTask,
    TaskLimits,
    WaitingTask,
)
from headgate.testing.limits_off import limits_off


class Queue:
    """One worker, one task and a clock: `arrive` is a message that reaches the worker."""

    def __init__(self, *limits: TaskLimit | str, rules: Any = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.limits = TaskLimits(rules, self.engine, clock=self.clock, **settings)
        made = [TaskLimit(each) if isinstance(each, str) else each for each in limits]
        self.bound = self.limits.bind("send", made)
        self.began_at = self.limits.now()

    @property
    def at(self) -> float:
        return round(self.limits.now() - self.began_at, 6)

    def arrive(
        self, waiting: WaitingTask | None = None, expires_in: float | None = None, **arguments: Any
    ) -> StartTask | PutBack:
        call = TaskCall("send", arguments, "mails")
        expires_at = None if expires_in is None else self.limits.now() + expires_in
        return self.limits.decide(call, self.bound, waiting, expires_at)

    def put_back(self, *args: Any, **arguments: Any) -> WaitingTask:
        """Arrives, and must be put back; through JSON, as a broker carries it."""
        answer = self.arrive(*args, **arguments)
        assert isinstance(answer, PutBack), answer
        return WaitingTask.from_json(answer.waiting.to_json())

    def begin(self, *args: Any, **arguments: Any) -> StartTask:
        """Arrives, and must begin."""
        answer = self.arrive(*args, **arguments)
        assert isinstance(answer, StartTask), answer
        return answer

    def wait(self, waiting: WaitingTask) -> float:
        """Returns how long until a message arrives again."""
        return round(waiting.at - self.limits.now(), 6)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


def test_a_task_waits_once_for_its_exact_place_and_is_charged_once() -> None:
    queue = Queue("1/s burst 2")
    queue.begin()
    queue.begin()
    places = [queue.put_back() for _ in range(3)]
    assert [queue.wait(place) for place in places] == [1.0, 2.0, 3.0]
    for place in places:
        queue.advance(queue.wait(place))
        queue.begin(place)
    assert queue.wait(queue.put_back()) == 1.0, "none of the three was charged again"


@pytest.mark.parametrize("units", [-1, 2.5, "two", "", True, [3], 2**53 + 1])
def test_an_argument_that_is_no_cost_is_an_error(units: object) -> None:
    limits = [TaskLimit("5/minute", cost="units", missing=missing) for missing in ("one", "skip", "deny")]
    for limit in limits:
        queue = Queue(limit)
        with pytest.raises(
            InvalidCharge,
            match=r"\.py:\d+: The cost of a call is its argument units, a whole number from 0 ",
        ):
            queue.arrive(units=units)
        queue.begin(units=5)


def test_a_cost_that_no_rule_reads_is_no_error() -> None:
    queue = Queue(TaskLimit("5/minute", cost="units", when={"queue": "bulk"}))
    queue.begin(units=-1)
    queue = Queue(TaskLimit("2/minute", cost="units"))
    queue.begin(units=None)
    queue.begin(units="1")
    assert queue.wait(queue.put_back(units=1)) == 30.0, "a missing cost is 1"


def test_a_message_that_arrives_before_its_place_is_put_back_for_the_same_place() -> None:
    queue = Queue("1/hour burst 1")
    queue.begin()
    place = queue.put_back()
    queue.advance(900)
    again = queue.put_back(place)
    assert (again, queue.wait(again)) == (place, 2700.0)
    queue.advance(2700)
    queue.begin(again)


def test_a_late_task_begins_and_one_that_missed_its_place_reserves_another() -> None:
    queue = Queue("1/s burst 1", max_late=5)
    queue.begin()
    late, missed = queue.put_back(), queue.put_back()
    queue.advance(5)
    queue.begin(late)
    queue.advance(3)
    queue.begin()
    assert queue.wait(queue.put_back(missed)) == 1.0, "it waits for its turn like any other"


def test_a_missed_place_in_a_window_is_given_back() -> None:
    queue = Queue("2/hour fixed", max_late=5)
    queue.clock.advance(3600 - queue.clock.now_us() / SECOND % 3600)
    queue.begin()
    decision = queue.begin().decision
    assert decision is not None
    queue.begin(WaitingTask(queue.limits.now() - 6, queue.limits.limiter.receipts(decision)))
    assert queue.wait(queue.put_back()) == 3600.0, "there were two in this window, not three"


def test_several_limits_are_one_decision_and_the_task_waits_for_the_longest() -> None:
    queue = Queue("10/s burst 1; 2/minute fixed", TaskLimit("5/s burst 1", key="user_id"))
    queue.clock.advance(60 - queue.clock.now_us() / SECOND % 60)
    queue.begin(user_id=1)
    place = queue.put_back(user_id=2)
    assert queue.wait(place) == 0.1
    assert queue.wait(queue.put_back(user_id=2)) == 60.0


def test_a_task_that_expires_before_its_place_takes_none() -> None:
    queue = Queue("1/minute burst 1")
    queue.begin()
    assert queue.wait(queue.put_back(expires_in=10)) == 10 + AFTER_EXPIRY_S
    assert queue.wait(queue.put_back(expires_in=60)) == 60.0
    assert queue.wait(queue.put_back()) == 120.0


def test_a_task_whose_place_is_too_far_away_fails_and_takes_none() -> None:
    queue = Queue("1/minute burst 1", timeout=90)
    queue.begin()
    queue.put_back()
    with pytest.raises(RateLimited, match="retry after 120 s"):
        queue.arrive()


def test_a_cost_that_never_passes_fails() -> None:
    queue = Queue(TaskLimit("5/minute", cost="units"))
    queue.begin(units=3)
    with pytest.raises(RateLimited, match="a cost of 6 is too large, at most 5 can ever pass"):
        queue.arrive(units=6)
    assert queue.wait(queue.put_back(units=4)) == 24.0, "the one that failed was not charged"


def test_a_place_that_is_not_used_is_given_back() -> None:
    queue = Queue("1/minute burst 1")
    queue.begin()
    queue.limits.give_back(queue.put_back())
    assert queue.wait(queue.put_back()) == 60.0


def test_a_task_without_a_slot_looks_again_ever_less_often() -> None:
    queue = Queue("1 slot ttl 1h")
    first = queue.begin()
    waiting, waits = None, []
    for _ in range(8):
        waiting = queue.put_back(waiting)
        waits.append(queue.wait(waiting))
        queue.advance(queue.wait(waiting))
    bounds = [0.5, 1, 2, 4, 8, MAX_LOOK_AGAIN_S, MAX_LOOK_AGAIN_S, MAX_LOOK_AGAIN_S]
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True)), waits
    queue.limits.finish(first)
    queue.limits.finish(queue.begin(waiting))


def test_a_task_that_waits_for_its_place_holds_no_slot_and_one_without_slot_no_place() -> None:
    slot = TaskLimit("1 slot", name="exclusive")
    queue = Queue(slot, "1/minute burst 1")
    queue.limits.finish(queue.begin())
    place = queue.put_back()
    assert (queue.wait(place), len(place.receipts)) == (60.0, 1)
    others = queue.limits.bind("other", [slot])
    other = queue.limits.decide(TaskCall("other"), others)
    assert isinstance(other, StartTask), "the task that waits for its place holds no slot"
    queue.limits.finish(other)
    queue.advance(60)
    other = queue.limits.decide(TaskCall("other"), others)
    assert isinstance(other, StartTask)
    without_slot = queue.put_back(place)
    assert (without_slot.receipts, without_slot.looks) == ([], 1)
    queue.limits.finish(other)
    queue.advance(queue.wait(without_slot))
    queue.limits.finish(queue.begin(without_slot))


def test_a_task_waits_while_the_engine_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue("1/minute burst 1")
    queue.begin()
    limiter = queue.limits.limiter

    def down(*args: object) -> None:
        raise EngineUnavailable("Connection refused.")

    monkeypatch.setattr(limiter, "reserve_plan", down)
    waiting = queue.put_back()
    assert (waiting.receipts, waiting.looks) == ([], 1)
    assert "tasks could not be decided and were put back (1 since the last report): Connection" in caplog.text
    monkeypatch.undo()
    queue.advance(queue.wait(waiting))
    assert 59 <= queue.wait(queue.put_back(waiting)) <= 60


def test_a_lockout_is_waited_for() -> None:
    queue = Queue(
        TaskLimit("2/minute fixed", cost=2, lockout={"after": 1, "within": "1m", "for": "5m"}), timeout=1
    )
    queue.begin()
    with pytest.raises(RateLimited):
        queue.arrive()
    with pytest.raises(RateLimited, match="locked out"):
        queue.arrive()


def test_a_rulebook_sees_task_queue_and_arguments() -> None:
    rules = {
        "attributes": ["task", "queue"],
        "rules": [
            {
                "name": "mails",
                "when": {"queue": "mails"},
                "key": "argument.user_id",
                "missing": "one",
                "limit": "1/s",
            },
            {"name": "other", "when": {"task": "other"}, "limit": "1/hour"},
        ],
    }
    queue = Queue(rules=rules)
    queue.begin(user_id=1)
    assert queue.wait(queue.put_back(user_id=1)) == 1.0
    queue.begin(user_id=2)


def test_functions_receive_the_call() -> None:
    plans = {1: "free", 2: "pro"}
    queue = Queue(
        TaskLimit(
            {"by": "plan", "cases": {"pro": "2/hour burst 2"}, "otherwise": "1/hour burst 1"},
            key=lambda call: f"{call.queue}/{call.arguments['user_id']}",
            cost=lambda call: call.arguments.get("cost", 1),
            exempt=lambda call: call.arguments["user_id"] == 3,
        ),
        attributes=lambda call: {"plan": plans.get(call.arguments["user_id"])},
    )
    for user in (1, 2, 2, 3, 3, 3):
        queue.begin(user_id=user)
    for user in (1, 2):
        queue.put_back(user_id=user)
    with pytest.raises(InvalidCharge, match="A cost is a whole number"):
        queue.arrive(user_id=4, cost="two")


def test_all_tasks_share_the_limits_of_the_application() -> None:
    queue = Queue(limits=["1/s burst 1"])
    queue.begin()
    assert isinstance(queue.limits.decide(TaskCall("other"), ()), PutBack)


def test_limits_off_lets_every_task_begin() -> None:
    queue = Queue("1/hour")
    for limited in ((), (queue.limits,)):
        with limits_off(*limited):
            for _ in range(3):
                queue.begin()
    queue.begin()
    queue.put_back()


def test_arguments_are_read_by_name_with_defaults() -> None:
    def task(a: int, b: int = 2, *rest: int, **others: int) -> None: ...

    signature = inspect.signature(task)
    assert read_arguments(signature, (1,), {"c": 3}) == {"a": 1, "b": 2, "rest": (), "c": 3}
    assert read_arguments(signature, (), {}) is None


untyped_limit: Any = TaskLimit
untyped_limits: Any = TaskLimits


def user_task(user_id: int, plan: str = "free") -> None: ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: untyped_limit("5/s", key="userid")(user_task),
            'no argument "userid" to be limited by. Did you mean',
        ),
        (
            lambda: untyped_limit("5/s", key="tenant")(user_task),
            'no argument "tenant" to be limited by. It has user_id',
        ),
        (lambda: untyped_limit("5/s", cost="units")(user_task), 'no argument "units"'),
        (
            lambda: untyped_limit("5/s", keys="user_id"),
            "keys= is not a setting of the limit of a task. Did you mean key",
        ),
        (lambda: untyped_limit("5/s", refund="2xx"), "refund= is not a setting of the limit of a task"),
        (lambda: untyped_limit("5/ss"), '"5/ss"'),
        (lambda: untyped_limit("5/s", cost=6), "never passes 5/s"),
        (lambda: untyped_limit("5/s")(3), "A limit decorates the function of a task, not 3."),
        (lambda: untyped_limits(None, None), "engine= is missing: tasks run in many processes"),
        (lambda: untyped_limits(None, "memory://", timeout="1m"), "A timeout is a number of seconds"),
        (lambda: untyped_limits(None, "memory://", max_late=-1), "max_late is a number at least 0"),
        (lambda: untyped_limits(None, "memory://", limit=["5/s"]), "Did you mean limits=?"),
        (lambda: untyped_limits(None, "memory://", limits=[5]), "not 5."),
        (
            lambda: untyped_limits(None, "memory://", limits=[untyped_limit("5/s", key="a")]),
            'all tasks has no argument "a"',
        ),
        (lambda: untyped_limits(None, "memory:/"), "memory"),
        (lambda: untyped_limits({"rules": [{"name": "a"}]}, "memory://"), "limit"),
        (lambda: same_name(), "is written differently at"),
    ],
)
def test_what_is_set_wrong_is_refused_with_a_sentence(make: Any, message: str) -> None:
    with pytest.raises((InvalidRule, InvalidSetting, InvalidCharge)) as raised:
        make()
    assert message in str(raised.value)


def same_name() -> None:
    limits = TaskLimits(None, "memory://")
    limits.bind("a", [TaskLimit("5/s", name="shared")])
    limits.bind("b", [TaskLimit("6/s", name="shared")])


def test_a_limit_in_code_may_not_have_the_name_of_a_rule() -> None:
    queue = Queue("5/s", rules={"rules": [{"name": "send", "limit": "1/s"}]})
    with pytest.raises(InvalidRule, match='"send" has the name of a rule in the rulebook'):
        queue.arrive()


ADAPTIVE_TASKS: Any = {
    "rules": [{"name": "tasks", "limit": {"adaptive": "concurrency", "target": "p50 1s", "between": [1, 20]}}]
}


def _limit_after(outcome: BaseException | None, seconds: float, *limits: TaskLimit | str) -> tuple[int, int, str]:
    """The limit after 25 tasks that took so long and ended so."""
    queue = Queue(*limits, rules=ADAPTIVE_TASKS)
    for _ in range(25):
        answer = queue.arrive()
        while isinstance(answer, PutBack):
            queue.advance(queue.wait(answer.waiting))
            answer = queue.arrive(answer.waiting)
        queue.advance(seconds)
        queue.limits.finish(answer, outcome)
    limits_now: dict[str, tuple[int, int, str]] = queue.limits.limiter.adaptive.rules["tasks"].limits()
    return limits_now["all"]


class SoftTimeLimitExceeded(Exception):
    """The time limit of Celery, by its name."""


def test_tasks_report_how_long_they_took_and_how_they_ended() -> None:
    assert _limit_after(None, 1.5) == (18, 0, "above the target")
    assert _limit_after(ValueError(), 1.5) == (20, 0, "start"), "an error says nothing"
    for timeout in (TimeoutError(), SoftTimeLimitExceeded()):
        limit, in_flight, reason = _limit_after(timeout, 0.1)
        assert (limit < 20, in_flight, reason) == (True, 0, "above the target")


def test_a_task_that_waits_for_its_place_is_not_in_flight_and_does_not_count_the_wait() -> None:
    limit, in_flight, reason = _limit_after(None, 0.1, "1/s burst 1")
    assert (in_flight, reason) == (0, "not used")
    assert limit == 20


def test_a_task_that_finds_no_room_looks_again_as_for_a_slot() -> None:
    rules = {"rules": [{"name": "tasks", "limit": {"adaptive": "concurrency", "between": [1, 1]}}]}
    queue = Queue(rules=rules)
    first = queue.begin()
    waits = []
    waiting = queue.put_back()
    for _ in range(6):
        waits.append(queue.wait(waiting))
        queue.advance(waits[-1])
        waiting = queue.put_back(waiting)
    assert max(waits) <= MAX_LOOK_AGAIN_S
    assert waits[0] <= 0.5 < waits[-1]
    queue.limits.finish(first)
    queue.advance(queue.wait(waiting))
    queue.begin(waiting)
