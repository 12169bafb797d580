"""Refuses the least important calls first, and lets the others wait for a moment.

Two parts work together. The rejection ratio is the share of all calls that has to be refused: it rises while
calls find no room, and falls otherwise. It becomes a decision by the quantile of recent priorities: of the last
1,000 calls the least important ones are refused, as many as the ratio says, at random within a class. So a
class is refused as a whole only if that is not enough, and no number has to be set for any class.

The last free places are kept for more important calls while calls are refused: a full limit has no place for them
either. If those are the part p of the calls that pass, all of n free places are taken before a call ends about as
often as p to the power of n; so few are enough, and the limit grows by what they leave unused.

Calls that are not refused and find the limit reached wait in a short queue, the most important first, for at
most `max_wait_ns`. Calls of the least important class never wait, nor do those of a class of which the ratio
refuses a part: there are more of them than can be served, and by waiting they would only delay each other.

With `fair`, chance within a class is weighted by user: one who makes k times as many calls as the average user
is refused first. Without users it is blind.

Laws (tests/adaptive/test_priority.py): never more in flight than the limit; at any ratio a class is refused
only if all less important classes are refused entirely; nobody waits longer than allowed; memory is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

from headgate.adaptive.gate import ConcurrencyGate
from headgate.adaptive.rate_gate import RateGate
from headgate.adaptive.target_rate import TargetRate
from headgate.adaptive.window import LimitAlgorithm
from headgate.errors import InvalidRule

RECENT_CALLS: Final = 1000
_PERIOD_NS = 100_000_000.0
_MORE = 1.2  # times the calls that pass, in each period in which there was room
_MIN_QUEUE = 10  # calls that may wait, also where the limit is lower
_MOST_RESERVED, _RESERVED_PART = 10, 0.23  # places, and of the limit
_RARELY = 0.002  # of the important calls may find all those places taken

QUEUED: Final = -1


class RejectionRatio:
    """The share of calls to refuse, and which ones those are. Class 0 is the most important."""

    def __init__(self, classes: int, random: Random, *, fair: bool = False) -> None:
        self.ratio: float = 0.0
        self._random = random
        self._fair = fair
        self._recent: deque[tuple[int, object]] = deque()
        self._counts = [0] * classes
        self._users: Counter[object] = Counter()
        self._calls = self._roomless = 0
        self._period_ends_ns = 0.0

    def rejects(self, now_ns: float, priority: int, user: object = None) -> bool:
        """Returns whether a call that arrives is among those to refuse."""
        if now_ns >= self._period_ends_ns:
            self._adjust(now_ns)
        self._calls += 1
        self._remember(priority, user)
        if not self.ratio:
            return False
        less_important = sum(self._counts[priority + 1 :])
        position = (less_important + self._chance(user) * self._counts[priority]) / len(self._recent)
        return position < self.ratio

    def reaches(self, priority: int) -> bool:
        """Returns whether calls of this class are among those to refuse, all of them or a part."""
        return sum(self._counts[priority + 1 :]) < self.ratio * len(self._recent)

    def reserved(self, priority: int, places: int) -> int:
        """Returns how many of so many places a call of this class has to leave to more important ones."""
        more_important = sum(self._counts[:priority])
        if not self.ratio or not more_important:
            return 0
        part = more_important / len(self._recent) / (1.0 - self.ratio)  # of the calls that pass
        most, reserved, all_taken = min(_MOST_RESERVED, int(_RESERVED_PART * places)), 0, 1.0
        while reserved < most and all_taken > _RARELY:
            reserved, all_taken = reserved + 1, all_taken * part
        return reserved

    def found_no_room(self) -> None:
        """Notes a call that was not rejected, and could not be served."""
        self._roomless += 1

    def _adjust(self, now_ns: float) -> None:
        """Moves the ratio by what happened in the last tenth of a second."""
        if self._calls:
            share = self._roomless / self._calls
            if share > 0.02:
                self.ratio = min(0.99, self.ratio + 0.25 * share)
            else:  # the calls that pass grow by a part, however few they are: a flood does not return at once
                self.ratio = max(0.0, 1.0 - _MORE * (1.0 - self.ratio))
        self._calls = self._roomless = 0
        self._period_ends_ns = now_ns + _PERIOD_NS

    def _remember(self, priority: int, user: object) -> None:
        recent = self._recent
        recent.append((priority, user))
        self._counts[priority] += 1
        if self._fair:
            self._users[user] += 1
        if len(recent) > RECENT_CALLS:
            old_priority, old_user = recent.popleft()
            self._counts[old_priority] -= 1
            if self._fair:
                self._users[old_user] -= 1
                if not self._users[old_user]:
                    del self._users[old_user]

    def _chance(self, user: object) -> float:
        """Returns a number from 0 to 1; low ones are refused first."""
        chance = self._random.random()
        if not self._fair or user is None:
            return chance
        calls_per_user = len(self._recent) / len(self._users)
        return float(chance ** max(1.0, self._users[user] / calls_per_user))


def new_gate(algorithm: LimitAlgorithm[Any] | TargetRate, now_ns: float) -> ConcurrencyGate | RateGate:
    """Returns a gate that enforces what this algorithm computes."""
    if isinstance(algorithm, TargetRate):
        return RateGate(algorithm, now_ns)
    return ConcurrencyGate(algorithm, now_ns)


class _QueuedCall(NamedTuple):
    token: Any
    expires_ns: float


class PriorityGate:
    """A gate that knows how important calls are. Tokens are opaque: what its caller knows a call by."""

    def __init__(
        self,
        algorithm: LimitAlgorithm[Any] | TargetRate,
        now_ns: float,
        classes: int,
        *,
        max_wait_ns: float = 0.0,
        fair: bool = False,
        random: Random | None = None,
        gate: ConcurrencyGate | RateGate | None = None,
    ) -> None:
        if type(classes) is not int or classes < 1:
            raise InvalidRule(f"There is at least one class of priorities; not {classes!r}.")
        self.gate: ConcurrencyGate | RateGate = gate or new_gate(algorithm, now_ns)
        self.rejection: RejectionRatio = RejectionRatio(classes, random or Random(), fair=fair)
        self._max_wait_ns = max_wait_ns
        self._queues: list[deque[_QueuedCall]] = [deque() for _ in range(classes)]
        self._length = 0

    def enter(
        self, now_ns: float, token: Any, priority: int = 0, user: object = None, *, may_wait: bool = True
    ) -> int:
        """Returns how many calls are in flight with this one; 0 if it is refused, QUEUED if it waits."""
        if self.rejection.rejects(now_ns, priority, user):
            if self.gate.in_flight >= self.gate.limit:
                self.gate.wait()
            else:
                self.gate.turn_away()
            return 0
        reserved = self.rejection.reserved(priority, self.gate.units_at_once)
        if any(self._queues[: priority + 1]) or (reserved and self.gate.room(now_ns) <= reserved):
            self.gate.wait()
        elif entered := self.gate.try_enter(now_ns):  # counts a call that finds no room
            return entered
        if may_wait and self._may_wait(priority):
            self._queues[priority].append(_QueuedCall(token, now_ns + self._max_wait_ns))
            self._length += 1
            return QUEUED
        self.rejection.found_no_room()
        return 0

    def leave(self, entered: int, started_ns: float, now_ns: float, outcome: int) -> list[tuple[Any, int]]:
        """Counts a call that ended; returns the tokens that are admitted now, each with the calls in flight."""
        self.gate.leave(entered, started_ns, now_ns, outcome)
        admitted: list[tuple[Any, int]] = []
        while self._length and self.gate.in_flight < self.gate.limit:
            queue = next(queue for queue in self._queues if queue)
            self._length -= 1
            admitted.append((queue.popleft().token, self.gate.enter_above()))  # it was counted when it came
        return admitted

    @property
    def expires_ns(self) -> float:
        """Returns when the next call has waited too long."""
        return min((queue[0].expires_ns for queue in self._queues if queue), default=inf) if self._length else inf

    def expire(self, now_ns: float) -> Sequence[Any]:
        """Removes the calls that have waited too long, and returns their tokens."""
        expired = []
        for queue in self._queues:
            while queue and queue[0].expires_ns <= now_ns:
                expired.append(queue.popleft().token)
                self._length -= 1
                self.rejection.found_no_room()
        return expired

    def withdraw(self, token: Any) -> bool:
        """Removes a call that no longer waits; returns whether it was still in the queue."""
        for queue in self._queues:
            for queued in queue:
                if queued.token is token:
                    queue.remove(queued)
                    self._length -= 1
                    return True
        return False

    def _may_wait(self, priority: int) -> bool:
        important = priority < len(self._queues) - 1 or len(self._queues) == 1
        short = self._length < max(_MIN_QUEUE, self.gate.limit)
        return self._max_wait_ns > 0 and important and short and not self.rejection.reaches(priority)
