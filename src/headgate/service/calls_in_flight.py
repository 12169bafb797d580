"""Calls that adaptive rules let pass, until the caller reports how they ended.

The answer to a check has a receipt, and with it the caller reports a success, a drop, or a call to be ignored. A
call that is not reported within `within` seconds counts as dropped: for whoever waits for its answer, it is.
The calls are in flight in this process alone, so no other one can end them; a receipt says which process it was.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from headgate.enforcement import adaptive_rules
from headgate.enforcement.adaptive_rules import DROPPED
from headgate.enforcement.rule_decision import RuleDecision

CallId = tuple[bytes, int]  # the process, and a number


class CallsInFlight:
    """The calls of one process that wait for their report."""

    def __init__(self, within: float, clock: Callable[[], float] = monotonic) -> None:
        self.within: float = within
        self.process: bytes = secrets.token_bytes(8)
        self._clock = clock
        self._calls: OrderedDict[int, tuple[float, RuleDecision]] = OrderedDict()  # the oldest first
        self._last = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, decision: RuleDecision) -> CallId | None:
        """Waits for the report of a decision's calls; returns their id, None if no adaptive rule let it pass."""
        self.expire()
        if not adaptive_rules.has_calls(decision):
            return None
        self._last += 1
        self._calls[self._last] = self._clock() + self.within, decision
        if self._timer is None:  # where all calls are lost, no other one comes to end them
            self._timer = asyncio.get_running_loop().call_later(self.within, self._expire_in_time)
        return self.process, self._last

    def take(self, call: CallId) -> RuleDecision | None:
        """Returns the decision of a call, once; None if it has ended, or is in flight in another process."""
        self.expire()
        process, number = call
        entry = self._calls.pop(number, None) if process == self.process else None
        return None if entry is None else entry[1]

    def put_back(self, call: CallId, decision: RuleDecision) -> None:
        """Keeps a decision whose report could not be carried out, for another `within` seconds."""
        self._calls[call[1]] = self._clock() + self.within, decision

    def _expire_in_time(self) -> None:
        self.expire()
        self._timer = None
        if self._calls:
            due, _ = next(iter(self._calls.values()))
            self._timer = asyncio.get_running_loop().call_later(due - self._clock(), self._expire_in_time)

    def expire(self) -> None:
        """Ends the calls whose report is overdue: they were dropped."""
        now = self._clock()
        while self._calls:
            number, (due, decision) = next(iter(self._calls.items()))
            if due > now:
                return
            del self._calls[number]
            adaptive_rules.end(decision, DROPPED)
