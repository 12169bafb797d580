"""Enforces the adaptive limits of rules in this process: what they have learned outlives a changed rulebook.

    rule -> key -> AdaptiveLimiter        each key (a host, a route) has a limit of its own

A call that passes is in flight until somebody says how it ended: an integration, a block of `hold`, or `finish`.
If nobody does, the call ends when its decision is garbage, and is ignored. A rule of which only such calls are
known stands still, and a warning says so. In shadow, calls are counted and measured like others, and none is
refused; so in an overload its limit falls to the lower bound, where one that is enforced would have ended it.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from threading import Lock
from types import TracebackType
from typing import Any, Final

from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.adaptive.call_in_flight import AdaptiveCall
from headgate.adaptive.limiter import AdaptiveLimiter
from headgate.algorithms.decision import AdaptiveOutcome, Decision
from headgate.clock import Clock, SystemClock
from headgate.errors import InvalidCharge, RateLimited
from headgate.observer import LimitChange
from headgate.rules.keys import ALL
from headgate.rules.rule import Rule, adaptive_limit_of

SUCCESS, DROPPED, IGNORED = OUTCOMES = ("success", "dropped", "ignored")

MAX_KEYS: Final = 10_000  # of a rule; of more, those that were idle longest are learned anew
VOTE_NS: Final = 10_000_000_000  # for which what a process learned counts among others
STANDSTILL_CALLS: Final = 20  # that nobody reported, and none that somebody did: the rule stands still
IGNORED_CALLS: Final = 100  # that were reported as ignored, and none otherwise: likewise

_log = logging.getLogger("headgate")


class CallTicket:
    """A call in flight under a rule. One that is dropped by everybody ends by itself."""

    __slots__ = ("_call", "_rule", "_within_limit")

    def __init__(self, rule: AdaptiveRule, call: AdaptiveCall, *, within_limit: bool = True) -> None:
        self._rule = rule
        self._within_limit = (
            within_limit  # not if a shadow would have refused it: then it took nothing to give back
        )
        self._call: AdaptiveCall | None = call

    def end(self, outcome: str) -> None:
        """Ends the call as a success, dropped or ignored; if it has ended, nothing happens."""
        call, self._call = self._call, None
        if call is not None:
            self._rule.note_outcome(outcome)
            (call.success if outcome == SUCCESS else call.drop if outcome == DROPPED else call.ignore)()

    def cancel(self) -> None:
        """Takes the call back: another rule refused it, or it did not begin."""
        call, self._call = self._call, None
        if call is not None:
            (call.cancel if self._within_limit else call.ignore)()

    def abandon(self) -> None:
        """Ends a call of which nobody will report how it ended: it is ignored."""
        call, self._call = self._call, None
        if call is not None:
            self._rule.abandoned.append(call)
            self._rule.end_abandoned()

    def restart(self) -> None:
        """Measures the response time from now on."""
        if self._call is not None:
            self._call.restart()

    def __del__(self) -> None:
        # Garbage may be collected in any thread, and while the limiter's lock is held: the next call ends it.
        if self._call is not None:
            self._rule.abandoned.append(self._call)


class AdaptiveRule:
    """The limits of one adaptive rule, by key."""

    def __init__(self, name: str, limit: AdaptiveLimit, classes: list[str], clock_ns: Callable[[], int]) -> None:
        self.name: str = name
        self.limit: AdaptiveLimit = limit
        self.is_reported: bool = False  # whether anybody ever said how a call ended
        self._has_learned = False  # from a call that was no ignored one
        self.abandoned: deque[AdaptiveCall] = deque()
        self.on_change: Callable[[LimitChange], None] | None = None
        self._classes = classes
        self._clock_ns = clock_ns
        self._limiters: OrderedDict[str, AdaptiveLimiter] = OrderedDict()
        self._lock = Lock()
        self._unreported = self._ignored = 0
        self.is_agreed: bool = False  # with all other processes
        self._voted_windows, self._learned_ns = 0, 0

    def change(self, limit: AdaptiveLimit, classes: list[str]) -> None:
        """Goes on with changed settings, and keeps what was learned as far as it fits."""
        with self._lock:
            if (limit.kind, limit.target, limit.bounds, classes) == (
                *(self.limit.kind, self.limit.target, self.limit.bounds),
                self._classes,
            ):
                return
            same_kind = limit.kind == self.limit.kind
            self.limit, self._classes = limit, classes
            limiters = list(self._limiters.values())
            if not same_kind:  # nothing that was learned of calls in flight tells a rate
                self._limiters.clear()
        for limiter in limiters if same_kind else ():
            limiter.change(limit.algorithm_settings(), keep=True, priorities=_names(classes))

    def limiter(self, key: str) -> AdaptiveLimiter:
        """Returns the limiter of a key."""
        limiter = self._limiters.get(key)
        if limiter is not None and len(self._limiters) == 1:
            return limiter
        with self._lock:
            limiter = self._limiters.get(key)
            if limiter is None:
                limiter = self._limiters[key] = AdaptiveLimiter(
                    self.limit.algorithm_settings(),
                    priorities=_names(self._classes),
                    name=self.name,
                    key=key,
                    clock_ns=self._clock_ns,
                )
                limiter.on_change = self._changed
                if len(self._limiters) > MAX_KEYS:
                    self._remove_an_idle_limiter()
            else:
                self._limiters.move_to_end(key)
            return limiter

    def _remove_an_idle_limiter(self) -> None:
        """Removes the limiter that was idle longest. One with calls in flight stays: they would not be counted."""
        for key, limiter in self._limiters.items():
            if not limiter.in_flight:
                del self._limiters[key]
                return

    def class_of(self, limit: AdaptiveLimit) -> str | None:
        """Returns the class of a call; a call that was planned before the classes changed gets the nearest one."""
        return str(min(limit.priority, len(self._classes) - 1)) if self._classes else None

    def vote(self) -> int | None:
        """Returns what this process has learned for all calls together; None if no window was complete lately."""
        limiter = self._limiters.get(ALL)
        if limiter is None:
            return None
        windows, now_ns = limiter.windows, self._clock_ns()
        if windows != self._voted_windows:
            self._voted_windows, self._learned_ns = windows, now_ns
        return limiter.limit if windows and now_ns - self._learned_ns < VOTE_NS else None

    def agree(self, limit: float) -> None:
        """Goes on from the limit that all processes agreed on."""
        self.limiter(ALL).go_on_from(limit)

    def limits(self) -> dict[str, tuple[int, int, str]]:
        """Returns the limit of each key, its calls in flight, and the reason of its last change."""
        with self._lock:
            limiters = dict(self._limiters)
        return {key: (each.limit, each.in_flight, each.reason) for key, each in limiters.items()}

    def forget(self, key: str) -> None:
        """Deletes what was learned for a key."""
        with self._lock:
            self._limiters.pop(key, None)

    def end_abandoned(self) -> None:
        """Ends the calls that nobody reported, and warns if there are no others."""
        while self.abandoned:
            try:
                call = self.abandoned.popleft()
            except IndexError:  # another thread was faster
                return
            call.ignore()
            self._unreported += 1
            if self._unreported == STANDSTILL_CALLS and not self.is_reported:
                _log.warning(
                    'headgate: the rule "%s" stands still: of %d calls nobody said how they ended, so its limit '
                    "does not move. Write `with limiter.hold(...)` around the work, call "
                    "limiter.finish(decision) after it, or let an integration decide.",
                    self.name,
                    STANDSTILL_CALLS,
                )

    def note_outcome(self, outcome: str) -> None:
        """Notes that somebody reported a call; warns if all reports are of calls that tell nothing."""
        self.is_reported = True
        if outcome != IGNORED:
            self._has_learned = True
        elif not self._has_learned:
            self._ignored += 1
            if self._ignored == IGNORED_CALLS:
                _log.warning(
                    'headgate: the rule "%s" stands still: all of %d calls ended as ignored, so its limit does '
                    "not move. WebSockets, errors from 500 on and clients that went away tell nothing; limit "
                    "connections that stay open by slots.",
                    self.name,
                    IGNORED_CALLS,
                )

    @property
    def stands_still(self) -> bool:
        """Returns whether many calls have ended, and none told how the service does."""
        if self._has_learned:
            return False
        return self._ignored >= IGNORED_CALLS or (self._unreported >= STANDSTILL_CALLS and not self.is_reported)

    def _changed(self, change: LimitChange) -> None:
        _log.info(
            'headgate: the limit of the rule "%s" is %d %s, after %d: %s.',
            *(self.name, change.after, self.limit.unit, change.before, change.reason),
        )
        if self.on_change is not None:
            self.on_change(change)


class AdaptiveMeter:
    """The adaptive limit of a rule, for calls of one class."""

    def __init__(self, rule: AdaptiveRule, limit: AdaptiveLimit, clock: Clock, is_shadow: bool) -> None:
        self.limit: AdaptiveLimit = limit
        self.name: str = rule.name
        self._rule = rule
        self._clock = clock
        self._is_shadow = is_shadow

    def enter(self, key: str) -> AdaptiveOutcome:
        """Decides a call; one that passes is in flight until its ticket ends."""
        rule = self._rule
        if rule.abandoned:
            rule.end_abandoned()
        limiter, priority = rule.limiter(key), rule.class_of(self.limit)
        if self._is_shadow:
            call, refusal = limiter.observe(priority)
            return self._outcome(limiter, refusal, CallTicket(rule, call, within_limit=refusal is None))
        try:
            return self._outcome(limiter, None, CallTicket(rule, limiter.acquire(priority)))
        except RateLimited as refused:
            return self._outcome(limiter, refused.decision, None)

    def free(self, key: str) -> AdaptiveOutcome:
        """Returns what a call would find now; nothing begins."""
        if self._rule.abandoned:
            self._rule.end_abandoned()
        limiter = self._rule.limiter(key)
        return self._outcome(limiter, None if limiter.room else limiter.refusal(), None)

    def reset(self, key: str) -> None:
        """Deletes what was learned for a key."""
        self._rule.forget(key)

    def _outcome(
        self, limiter: AdaptiveLimiter, refusal: Decision | None, call: CallTicket | None
    ) -> AdaptiveOutcome:
        limit, now_us = limiter.limit, self._clock.now_us()
        if refusal is not None:
            _, _, wait_us, reset_us, _, _, _ = refusal.outcome
            return AdaptiveOutcome.wrap((False, 0, wait_us, reset_us, 0, now_us, 0), limit, limiter.reason, call)
        return AdaptiveOutcome.wrap((True, limiter.room, 0, 0, 0, now_us, 0), limit, limiter.reason, call)


class AdaptiveRules:
    """The adaptive rules of one limiter, by name."""

    def __init__(self, clock: Clock, on_change: Callable[[LimitChange], None] | None) -> None:
        self._clock = clock
        # A clock that can be set would make calls end before they begin; tests pass one that they drive.
        self._clock_ns = time.monotonic_ns if isinstance(clock, SystemClock) else lambda: clock.now_us() * 1000
        self._on_change = on_change
        self.rules: dict[str, AdaptiveRule] = {}

    def follow(self, rules: Iterable[Rule]) -> dict[str, AdaptiveRule]:
        """Goes on with the adaptive rules among these, and returns them; the others are forgotten."""
        previous_rules, followed_rules = self.rules, dict[str, AdaptiveRule]()
        for rule in rules:
            limit = adaptive_limit_of(rule)
            if limit is None:
                continue
            classes = [str(test.expected) for test, _ in rule.limit.cases]
            followed = previous_rules.get(rule.name)
            if followed is None:
                followed = AdaptiveRule(rule.name, limit, classes, self._clock_ns)
                followed.on_change = self._on_change
            else:
                followed.change(limit, classes)
            followed.is_agreed = rule.where == "cluster"
            followed_rules[rule.name] = followed
        self.rules = followed_rules
        return followed_rules

    def meter(self, rule: AdaptiveRule, limit: AdaptiveLimit, is_shadow: bool) -> AdaptiveMeter:
        """Returns the meter of a rule for calls of one class."""
        return AdaptiveMeter(rule, limit, self._clock, is_shadow)


class CallEnd:
    """Ends the calls of a decision when a block ends: as a success, dropped by a timeout, or ignored."""

    __slots__ = ("_decision",)

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def __enter__(self) -> None:
        restart(self._decision)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._decision, SUCCESS if kind is None else DROPPED if issubclass(kind, TimeoutError) else IGNORED)


def check_outcome(outcome: object) -> str:
    """Returns the outcome of a call; raises InvalidCharge if it is none."""
    if outcome not in OUTCOMES:
        raise InvalidCharge(f"A call ends as {', '.join(OUTCOMES[:-1])} or {OUTCOMES[-1]}; not {outcome!r}.")
    return str(outcome)


def end(decision: Decision, outcome: str) -> None:
    """Ends the calls that a decision let begin; does nothing under rules that are not adaptive."""
    for call in _calls(decision):
        call.end(outcome)


def cancel(decision: Decision) -> None:
    """Takes back the calls of a decision that did not start."""
    for call in _calls(decision):
        call.cancel()


def abandon(decision: Decision) -> None:
    """Ends the calls of a decision whose results nobody will report. The limit learns nothing from them."""
    for call in _calls(decision):
        call.abandon()


def has_calls(decision: Decision) -> bool:
    """Returns whether a decision let calls begin that somebody has to end."""
    return bool(_calls(decision))


def restart(decision: Decision) -> None:
    """Measures a decision's response times from now on: what came before was no work of the service."""
    for call in _calls(decision):
        call.restart()


def _calls(decision: Decision) -> list[Any]:
    outcomes = getattr(decision, "outcomes", None) or (decision.outcome,)
    return [
        outcome.call for outcome in outcomes if isinstance(outcome, AdaptiveOutcome) and outcome.call is not None
    ]


def _names(classes: list[str]) -> tuple[str, ...]:
    """Returns the names that a limiter knows the classes by: their numbers, for values may change."""
    return tuple(map(str, range(len(classes))))
