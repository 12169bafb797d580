"""Decides the calls of an application's tasks: each begins now, or later, at the place that it has reserved.

The part of the task queues' integrations that knows no queue: celery.py and dramatiq.py stand on it. A worker that
is about to begin a task calls `decide`, and receives one of two answers:

    StartTask    begin now; its slots, if it needs some, are held until `finish`
    PutBack      put the message back with this WaitingTask, to arrive again at that instant; do something else

A task that must wait reserves a place, once: its charges are made, and the message carries their receipts. When it
arrives at its place it begins without being charged again. What follows from that:

  - A task that comes late to its place, because no process was free, begins at once; late ones begin bunched. A
    place that was missed by more than `max_late` is given back, and the task reserves another: so the tasks of a
    worker that was down do not all begin together.
  - Nobody knows when a slot comes free, or an adaptive limit has room. A task that finds none gives its place
    back, and looks again after a pause that doubles, up to MAX_LOOK_AGAIN_S. So it does while the engine does not
    answer and there is no fallback.
  - Adaptive rules learn from how long tasks run in this process, and which of them time out.
  - A task that could not begin before it expires takes no place. It waits for its expiry.
  - A task that can never pass (its cost is too large), or not within `timeout`, raises RateLimited.

Laws (tests/integrations/test_task_limits.py): a call is charged once, however often it is put back; what it has
reserved is given back if it does not begin; none begins before its place, nor more than `max_late` after it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from random import random
from threading import Lock
from typing import Any, NamedTuple, Unpack

from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots
from headgate.clock import Clock, check_clock
from headgate.enforcement import adaptive_rules, held_slots
from headgate.enforcement.adaptive_rules import DROPPED, IGNORED, SUCCESS
from headgate.enforcement.call_plan import CallPlan
from headgate.enforcement.open_rulebook import Rules, check_rules
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.enforcement.stored_decision import ChargeReceipt
from headgate.engines.port import Engine
from headgate.errors import (
    CorruptState,
    EngineUnavailable,
    InvalidRule,
    InvalidSetting,
    LeaseLost,
    RateLimited,
)
from headgate.integrations.code_limit import BoundLimit
from headgate.integrations.finish_flows import holds_slots
from headgate.integrations.outage_log import OutageLog
from headgate.integrations.task_calls import TaskCall, TaskLimit, match_call
from headgate.integrations.task_settings import TaskSettings, check_task_settings, read_app_limits
from headgate.limit_syntax import parse
from headgate.rules.match import Match
from headgate.rules.rule import Rule, Rulebook
from headgate.slot_renewal import Holding

APP = "app"  # names the limits of the whole application
EARLY_S = 0.05  # by how much a timer of a worker may be early
MAX_LATE_S = 10.0  # unless the settings say otherwise
# How long a message waits in a worker: half of the 30 minutes after which RabbitMQ and SQS deliver one again.
MAX_HOP_S = 900.0
MIN_LOOK_AGAIN_S, MAX_LOOK_AGAIN_S = 0.5, 10.0
AFTER_EXPIRY_S = 0.5

_TIME_LIMITS = ("SoftTimeLimitExceeded", "TimeLimitExceeded")

_log = logging.getLogger("headgate")


class WaitingTask(NamedTuple):
    """A task that was put back: when it arrives again, the receipts of its place, and how often it looked for a
    slot."""

    at: float
    receipts: Sequence[ChargeReceipt] = ()
    looks: int = 0

    def to_json(self) -> list[Any]:
        """Returns what the message carries."""
        return [self.at, [list(receipt) for receipt in self.receipts], self.looks]

    @classmethod
    def from_json(cls, carried: Any) -> WaitingTask:
        """Reads what `to_json` returned."""
        at, receipts, looks = carried
        return cls(at, [ChargeReceipt(*receipt) for receipt in receipts], looks)


class StartTask(NamedTuple):
    """The task begins now."""

    decision: RuleDecision | None = None
    holding: Holding | None = None


class PutBack(NamedTuple):
    """The task is put back, to arrive again later."""

    waiting: WaitingTask


class TaskLimits:
    """All limits of one application's tasks, on one engine. Thread-safe; opens the engine at the first call."""

    def __init__(
        self, rules: Rules | None = None, engine: str | Engine | None = None, **settings: Unpack[TaskSettings]
    ) -> None:
        check_task_settings(engine, settings)
        self.rules: Rules = Rulebook() if rules is None else rules
        check_rules(self.rules)
        self._engine_or_url: Any = engine
        self._attributes = settings.get("attributes")
        self._timeout = settings.get("timeout")
        self._max_late = settings.get("max_late", MAX_LATE_S)
        self._observers = settings.get("observers", ())
        self.clock: Clock = check_clock(settings.get("clock"))
        self._given_clock = settings.get("clock")
        self._prefix = settings.get("prefix", "hg")
        self._lock = Lock()
        self._limiter: RuleLimiter | None = None
        self._rules_in_code: dict[str, tuple[Rule, str]] = {}
        self._bound: dict[tuple[str, tuple[int, ...]], tuple[BoundLimit, ...]] = {}
        self._outages = OutageLog("tasks", "put back")
        self.app_limits: tuple[BoundLimit, ...] = self.bind(APP, read_app_limits(settings))

    @property
    def limiter(self) -> RuleLimiter:
        """The limiter; opened when it is first used."""
        return self._limiter or self.open()

    def open(self) -> RuleLimiter:
        """Opens the engine, so that the first call need not."""
        with self._lock:
            if self._limiter is None:
                limiter = RuleLimiter(
                    self.rules,
                    self._engine_or_url,
                    clock=self._given_clock,
                    prefix=self._prefix,
                    observers=self._observers,
                )
                for rule in limiter.rulebook.rules:
                    self._check_name(rule.name, None, limiter.rulebook.source)
                limiter.add_code_rules([rule for rule, _ in self._rules_in_code.values()])
                self._limiter = limiter
            return self._limiter

    def bind(self, task: str, limits: Sequence[TaskLimit]) -> tuple[BoundLimit, ...]:
        """Names the limits of a task: by its own name, unless they have one. Always the same for the same task."""
        cache_key = task, tuple(map(id, limits))
        bound = self._bound.get(cache_key)
        if bound is None:
            with self._lock:
                bound = self._bound[cache_key] = self._bind(task, limits)
        return bound

    def _bind(self, task: str, limits: Sequence[TaskLimit]) -> tuple[BoundLimit, ...]:
        unnamed, bound = 0, []
        for limit in limits:
            unnamed += limit.name is None
            each = limit.bind(limit.name or (task if unnamed == 1 else f"{task} ({unnamed})"))
            self._add_rule(each.rule, limit.location)
            bound.append(each)
        return tuple(bound)

    def _add_rule(self, rule: Rule, location: str) -> None:
        registered_rule, first_location = self._rules_in_code.setdefault(rule.name, (rule, location))
        if registered_rule != rule:
            raise InvalidRule(
                f'{location}: The limit "{rule.name}" is written differently at {first_location}. Limits of one '
                "name share a counter: make them equal, or give each a name of its own."
            )
        if registered_rule is rule and self._limiter is not None:
            for other in self._limiter.rulebook.rules:
                self._check_name(other.name, rule.name, self._limiter.rulebook.source)
            self._limiter.add_code_rules([rule])

    def _check_name(self, name: str, added: str | None, source: str | None) -> None:
        """Raises InvalidRule if a rule of the rulebook has the name of a limit in code."""
        if name in self._rules_in_code and added in (None, name):
            raise InvalidRule(
                f'{self._rules_in_code[name][1]}: The limit "{name}" has the name of a rule in '
                f"{source or 'the rulebook'}: give it another one."
            )

    def now(self) -> float:
        """Returns the time of this machine, in seconds since 1970."""
        return self.clock.now_us() / SECOND

    def decide(
        self,
        call: TaskCall,
        limits: Sequence[BoundLimit],
        waiting: WaitingTask | None = None,
        expires_at: float | None = None,
    ) -> StartTask | PutBack:
        """Decides whether a call begins now or later; raises RateLimited if it never can.

        waiting      what the message carries, if the call was put back before
        expires_at   when the message expires, in seconds since 1970
        """
        now = self.now()
        if waiting is not None and waiting.at - now > EARLY_S:
            return PutBack(waiting)
        try:
            if waiting is not None and waiting.receipts and now - waiting.at > self._max_late:
                self.give_back(waiting)
                waiting = waiting._replace(receipts=())
            answer = self._decide(call, limits, waiting, expires_at, now)
        except (EngineUnavailable, CorruptState) as error:
            self._outages.note_failure(error)
            return self._look_again(waiting or WaitingTask(now), now)
        if self._outages.active:
            self._outages.note_success()
        return answer

    def _decide(
        self,
        call: TaskCall,
        limits: Sequence[BoundLimit],
        waiting: WaitingTask | None,
        expires_at: float | None,
        now: float,
    ) -> StartTask | PutBack:
        limiter = self.limiter
        compiled = limiter.compiled_rulebook
        attributes = self._all_attributes(call)
        matches: list[Match] = list(compiled.match(attributes, None)) if compiled.book.rules else []
        for bound in (*self.app_limits, *limits):
            match = match_call(call, bound, attributes)
            if match is not None:
                matches.append(match)
        place = waiting is not None and bool(waiting.receipts)
        if place:  # its other limits are charged
            matches = [match for match in matches if any(limit.is_held for limit in match.limits)]
        if not matches:
            return StartTask()
        plan = CallPlan(compiled, matches, attributes)
        if place:
            decision = limiter.decide_plan(plan)
        else:
            until_expiry = None if expires_at is None else max(0.0, expires_at - now)
            patience = [each for each in (self._timeout, until_expiry) if each is not None]
            decision = limiter.reserve_plan(plan, min(patience, default=None))
        if not decision.allowed:
            return self._refused(decision, waiting, expires_at, now)
        if not decision.delay_us:
            holding = self._hold(decision)
            adaptive_rules.restart(decision)
            return StartTask(decision, holding)
        adaptive_rules.cancel(decision)  # it is in flight once it begins
        if holds_slots(decision):
            limiter.release(decision)
        receipts = [each for each in limiter.receipts(decision) if not isinstance(parse(each.limit), Slots)]
        return PutBack(WaitingTask(now + decision.delay, receipts))

    def _refused(
        self, decision: RuleDecision, waiting: WaitingTask | None, expires_at: float | None, now: float
    ) -> PutBack:
        """Returns when a refused call is to arrive again; raises RateLimited if it never passes."""
        if waiting is not None:
            self.give_back(waiting)
        if decision.limit is not None and decision.limit.is_held:
            return self._look_again((waiting or WaitingTask(now))._replace(receipts=()), now)
        wait = decision.retry_after
        if wait is not None and expires_at is not None and now + wait > expires_at:
            return PutBack(WaitingTask(expires_at + AFTER_EXPIRY_S))
        if wait is None or (self._timeout is not None and wait > self._timeout):
            raise RateLimited(decision)
        return PutBack(WaitingTask(now + max(wait, 2 * EARLY_S)))  # such as the end of a lockout

    def _look_again(self, waiting: WaitingTask, now: float) -> PutBack:
        pause = min(MIN_LOOK_AGAIN_S * 2**waiting.looks, MAX_LOOK_AGAIN_S)
        # Between half of it and all of it, so that tasks that came together do not look together.
        return PutBack(waiting._replace(at=now + pause * (1 + random()) / 2, looks=waiting.looks + 1))

    def give_back(self, waiting: WaitingTask) -> None:
        """Gives the place of a call back that will not use it: what later places do not depend on, and once its
        time has come what it still holds."""
        if waiting.receipts:
            decision = self.limiter.restore_decision(waiting.receipts)
            if waiting.at > self.now():
                self.limiter.cancel(decision)
            else:
                self.limiter.refund(decision)

    def give_back_quietly(self, waiting: WaitingTask) -> None:
        """Gives the place of a call back where nobody waits for it: an engine that does not answer is logged."""
        try:
            self.give_back(waiting)
        except (EngineUnavailable, CorruptState) as error:
            _log.warning("headgate: the place of a task could not be given back: %s", error)

    def _hold(self, decision: RuleDecision) -> Holding | None:
        hold = held_slots.hold(decision)
        if hold is None:
            return None
        limiter = self.limiter
        holding = Holding(
            hold, lambda: limiter.renew(decision), lambda: hold.is_released or limiter.release(decision)
        )
        return holding.__enter__()

    def finish(self, start: StartTask, error: BaseException | None = None) -> None:
        """Ends a task: tells adaptive rules how long it took, and whether it timed out or failed; releases its
        slots."""
        if start.decision is not None:
            adaptive_rules.end(start.decision, SUCCESS if error is None else _outcome_of_error(error))
        if start.holding is not None:
            try:
                start.holding.__exit__(None, None, None)
            except (LeaseLost, EngineUnavailable, CorruptState) as error:  # the task's own result matters more
                _log.warning("headgate: %s", error)

    def _all_attributes(self, call: TaskCall) -> dict[str, Any]:
        attributes = call.attributes()
        if self._attributes is not None:
            given = self._attributes(call) or {}
            if not isinstance(given, Mapping):
                raise InvalidSetting(f'attributes= returns a mapping such as {{"plan": "pro"}}, not {given!r}.')
            attributes.update(given)
        return attributes

    def close(self) -> None:
        """Closes the engine, if it was opened."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.close()


def _outcome_of_error(error: BaseException) -> str:
    """Returns what the exception of a task says about what it calls: a timeout is a drop, any other its own
    affair. The time limits of Celery and Dramatiq are no TimeoutError."""
    is_timeout = isinstance(error, TimeoutError) or type(error).__name__ in _TIME_LIMITS
    return DROPPED if is_timeout else IGNORED
