"""Leases of slots and the lines for them, kept in memory: the twin of lua/commands/slots.lua.

What a key holds is a sorted list of ends, leases and tickets together, and a sorted list of tickets; both are
found by bisection. A key that is dead is dropped when its last lease is released, or when a later key
arrives:
each new key makes the table look at a few old ones, so no call ever sweeps them all.

Nothing here locks or reads a clock: the engine does both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from math import inf

from headgate.algorithms import slots
from headgate.algorithms.decision import Outcome
from headgate.algorithms.slots import Slots

_LOOKED_AT = 2  # old keys examined for each new one


class _Key:
    """Everything about one key."""

    __slots__ = ("ends", "expires_us", "fresh", "line", "stamp_us")

    def __init__(self, fresh: int = 0) -> None:
        self.expires_us: dict[int, int] = {}  # by number, of leases and tickets alike
        self.ends: list[tuple[int, int]] = []  # the same as (expires_us, number), the earliest first
        self.line: list[int] = []  # which of the numbers are tickets
        self.fresh = fresh
        self.stamp_us = 0

    def settle(self, now_us: int) -> int:
        """Follow a clock that was set back; the instant that the key is judged as at."""
        stepped_us = slots.stepped_us(self.stamp_us, now_us)
        if stepped_us:
            self.stamp_us = now_us
            self.ends = [(expires_us - stepped_us, number) for expires_us, number in self.ends]
            self.expires_us = {number: expires_us for expires_us, number in self.ends}
        return slots.as_at(self.stamp_us, now_us)

    def put(self, number: int, expires_us: int, now_us: int) -> None:
        self.expires_us[number] = expires_us
        insort(self.ends, (expires_us, number))
        self.stamp_us = now_us
        self.fresh = max(self.fresh, number + 1)

    def stand(self, ticket: int | None, now_us: int) -> int:
        """Stand in line with this ticket, or with a new one."""
        drawn, expires_us = slots.draw(self.fresh, now_us)
        self.prune(now_us)
        if ticket is None:
            self.line.append(drawn)
            ticket = drawn
        self.put(ticket, expires_us, now_us)
        return ticket

    def remove(self, number: int) -> None:
        end = self.expires_us.pop(number), number
        del self.ends[bisect_left(self.ends, end)]

    def quit(self, ticket: int) -> None:
        del self.line[bisect_left(self.line, ticket)]

    def prune(self, now_us: int) -> None:
        """Remove what is dead."""
        dead = self._dead(now_us)
        for _, number in self.ends[:dead]:
            del self.expires_us[number]
            if self.waits(number):
                self.quit(number)
        del self.ends[:dead]

    def waits(self, number: int) -> bool:
        place = bisect_left(self.line, number)
        return place < len(self.line) and self.line[place] == number

    def holds(self, fence: int, now_us: int) -> bool:
        return self.expires_us.get(fence, 0) > now_us and not self.waits(fence)

    def judge(
        self, limit: Slots, now_us: int, at_us: int, cost: int, ticket: int | None
    ) -> tuple[Outcome, slots.Held | None]:
        dead = self._dead(at_us)
        alive = len(self.ends) - dead
        behind = 0
        if ticket is not None:
            others = self.line[bisect_right(self.line, ticket) :]
            behind = sum(self.expires_us[number] > at_us for number in others)
        turn = slots.turn(limit, alive)
        opens_us = 0 if turn is None else self.ends[dead + turn][0]
        return slots.decide(limit, (alive, behind, opens_us, self.last_us, self.fresh), now_us, cost, at_us)

    @property
    def last_us(self) -> int:
        return self.ends[-1][0] if self.ends else 0

    def dead(self, now_us: int) -> bool:
        return slots.dead_at_us(self.last_us, self.fresh) <= now_us

    def _dead(self, at_us: int) -> int:
        return bisect_right(self.ends, (at_us, inf))


class SlotTable:
    """The keys of one name. The least number that none of them was ever given outlives them: no fence repeats."""

    __slots__ = ("_fresh", "_keys")

    def __init__(self) -> None:
        self._keys: OrderedDict[str, _Key] = OrderedDict()
        self._fresh = 0

    def __len__(self) -> int:
        return len(self._keys)

    def acquire(
        self, key: str, limit: Slots, now_us: int, ticket: int | None = None, wait: bool = False
    ) -> tuple[Outcome, int | None]:
        """Ask for a slot. Allowed, the facts' mark is the fence; denied, who waits gets a ticket.

        Asking again with the ticket keeps the place; asking with it and not waiting any more gives it up.
        """
        kept = self._keys.get(key) or _Key(self._fresh)
        at_us = kept.settle(now_us)
        if ticket is not None and kept.waits(ticket) and kept.expires_us[ticket] > at_us:
            kept.remove(ticket)  # Only the others count.
        else:
            ticket = None
        facts, held = kept.judge(limit, now_us, at_us, 1, ticket)
        if ticket is not None and (held or not wait):
            kept.quit(ticket)
        if held is not None:
            ticket = None
            kept.prune(at_us)
            kept.put(*held, at_us)
        elif wait:
            ticket = kept.stand(ticket, at_us)
        else:
            return facts, None  # Nothing was given, so nothing that is dead is removed: it may live again.
        self._fresh = max(self._fresh, kept.fresh)
        if key not in self._keys:
            self._keys[key] = kept
            self.sweep(now_us)
        return facts, ticket

    def renew(self, key: str, limit: Slots, fence: int, now_us: int) -> int | None:
        """When the lease expires now; None if it is gone."""
        kept = self._keys.get(key)
        if kept is None:
            return None
        at_us = kept.settle(now_us)
        if not kept.holds(fence, at_us):
            return None
        kept.remove(fence)
        expires_us = slots.renewed_us(limit, at_us)
        kept.put(fence, expires_us, at_us)
        return expires_us

    def release(self, key: str, fence: int, now_us: int) -> bool:
        """Whether the lease was still held."""
        kept = self._keys.get(key)
        if kept is None or not kept.holds(fence, kept.settle(now_us)):
            return False
        kept.remove(fence)
        if kept.dead(now_us):
            del self._keys[key]
        return True

    def leave(self, key: str, ticket: int) -> bool:
        """Give a ticket up; whether there was one."""
        kept = self._keys.get(key)
        if kept is None or not kept.waits(ticket):
            return False
        kept.remove(ticket)
        kept.quit(ticket)
        return True

    def peek(self, key: str, limit: Slots, now_us: int) -> Outcome:
        """How things stand; allowed says whether a newcomer would get a slot."""
        kept = self._keys.get(key) or _Key()
        return kept.judge(limit, now_us, kept.settle(now_us), 0, None)[0]

    def reset(self, key: str) -> None:
        """End all leases and tickets of the key. Its numbers go on, so no fence comes twice."""
        kept = self._keys.get(key)
        if kept is not None:
            kept.expires_us.clear()
            kept.ends.clear()
            kept.line.clear()

    def clear(self) -> None:
        """End all leases and tickets of all keys. Numbers go on here, too."""
        self._keys.clear()

    def sweep(self, now_us: int, looked_at: int = _LOOKED_AT) -> None:
        """Look at the keys that were not looked at for longest, and drop those that are dead."""
        for _ in range(min(looked_at, len(self._keys))):
            key = next(iter(self._keys))
            if self._keys[key].dead(now_us):
                del self._keys[key]
            else:
                self._keys.move_to_end(key)
