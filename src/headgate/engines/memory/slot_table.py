"""Leases of slots and the queues for them, in memory: the twin of lua/commands/slots.lua.

A key has a sorted list of expiries, of leases and tickets together, and a sorted list of tickets; both are
searched by bisection. A dead key is dropped when its last lease is released, or when a later key arrives: each new
key makes the table examine a few old ones, so no call ever sweeps them all.

Nothing here locks or reads a clock: the engine does both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from math import inf

from headgate.algorithms import slots
from headgate.algorithms.decision import Outcome
from headgate.algorithms.slots import Slots

_SWEEP_SIZE = 2  # old keys examined for each new one


class _Key:
    """The leases and tickets of one key."""

    __slots__ = ("expires_us", "expiries", "next_number", "queue", "stamp_us")

    def __init__(self, next_number: int = 0) -> None:
        self.expires_us: dict[int, int] = {}  # by number, of leases and tickets alike
        self.expiries: list[tuple[int, int]] = []  # the same as (expires_us, number), the earliest first
        self.queue: list[int] = []  # which of the numbers are tickets
        self.next_number = next_number
        self.stamp_us = 0

    def follow_clock(self, now_us: int) -> int:
        """Follows a clock that was set back; returns the instant that the key is judged at."""
        stepped_us = slots.stepped_us(self.stamp_us, now_us)
        if stepped_us:
            self.stamp_us = now_us
            self.expiries = [(expires_us - stepped_us, number) for expires_us, number in self.expiries]
            self.expires_us = {number: expires_us for expires_us, number in self.expiries}
        return slots.as_at(self.stamp_us, now_us)

    def put(self, number: int, expires_us: int, now_us: int) -> None:
        """Stores a lease or a ticket under its number."""
        self.expires_us[number] = expires_us
        insort(self.expiries, (expires_us, number))
        self.stamp_us = now_us
        self.next_number = max(self.next_number, number + 1)

    def enqueue(self, ticket: int | None, now_us: int) -> int:
        """Queues with this ticket, or with a new one; returns the ticket."""
        drawn, expires_us = slots.draw(self.next_number, now_us)
        self.prune(now_us)
        if ticket is None:
            self.queue.append(drawn)
            ticket = drawn
        self.put(ticket, expires_us, now_us)
        return ticket

    def remove(self, number: int) -> None:
        """Removes a lease or a ticket from the expiries."""
        expiry = self.expires_us.pop(number), number
        del self.expiries[bisect_left(self.expiries, expiry)]

    def dequeue(self, ticket: int) -> None:
        """Removes a ticket from the queue."""
        del self.queue[bisect_left(self.queue, ticket)]

    def prune(self, now_us: int) -> None:
        """Removes dead leases and tickets."""
        dead = self._dead_count(now_us)
        for _, number in self.expiries[:dead]:
            del self.expires_us[number]
            if self.is_waiting(number):
                self.dequeue(number)
        del self.expiries[:dead]

    def is_waiting(self, number: int) -> bool:
        index = bisect_left(self.queue, number)
        return index < len(self.queue) and self.queue[index] == number

    def is_held(self, fence: int, now_us: int) -> bool:
        return self.expires_us.get(fence, 0) > now_us and not self.is_waiting(fence)

    def judge(
        self, limit: Slots, now_us: int, at_us: int, cost: int, ticket: int | None
    ) -> tuple[Outcome, slots.Held | None]:
        """Decides a request for `cost` slots; with a ticket, later tickets do not count."""
        dead = self._dead_count(at_us)
        alive = len(self.expiries) - dead
        waiting_behind = 0
        if ticket is not None:
            later = self.queue[bisect_right(self.queue, ticket) :]
            waiting_behind = sum(self.expires_us[number] > at_us for number in later)
        turn = slots.turn(limit, alive)
        opens_us = 0 if turn is None else self.expiries[dead + turn][0]
        return slots.decide(
            limit, (alive, waiting_behind, opens_us, self.last_us, self.next_number), now_us, cost, at_us
        )

    @property
    def last_us(self) -> int:
        return self.expiries[-1][0] if self.expiries else 0

    def is_dead(self, now_us: int) -> bool:
        return slots.dead_at_us(self.last_us, self.next_number) <= now_us

    def _dead_count(self, at_us: int) -> int:
        return bisect_right(self.expiries, (at_us, inf))


class SlotTable:
    """The keys of one name. The next unused number outlives them, so no fence repeats."""

    __slots__ = ("_keys", "_next_number")

    def __init__(self) -> None:
        self._keys: OrderedDict[str, _Key] = OrderedDict()
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._keys)

    def acquire(
        self, key: str, limit: Slots, now_us: int, ticket: int | None = None, wait: bool = False, cost: int = 1
    ) -> tuple[Outcome, int | None]:
        """Requests a slot. Allowed, the outcome's mark is the fence; denied, a waiting caller gets a ticket. With
        a cost of 0 no slot is given: the key is paused.

        Asking again with the ticket keeps the place; asking with it and without `wait` gives it up.
        """
        slot_key = self._keys.get(key) or _Key(self._next_number)
        at_us = slot_key.follow_clock(now_us)
        if ticket is not None and slot_key.is_waiting(ticket) and slot_key.expires_us[ticket] > at_us:
            slot_key.remove(ticket)  # Only the others count.
        else:
            ticket = None
        outcome, held = slot_key.judge(limit, now_us, at_us, cost, ticket)
        if ticket is not None and (held or not wait):
            slot_key.dequeue(ticket)
        if held is not None:
            ticket = None
            slot_key.prune(at_us)
            slot_key.put(*held, at_us)
        elif wait:
            ticket = slot_key.enqueue(ticket, at_us)
        else:
            return outcome, None  # Nothing was given, so nothing dead is removed: it may live again.
        self._next_number = max(self._next_number, slot_key.next_number)
        if key not in self._keys:
            self._keys[key] = slot_key
            self.sweep(now_us)
        return outcome, ticket

    def renew(self, key: str, limit: Slots, fence: int, now_us: int) -> int | None:
        """Renews a lease and returns when it expires; None if it is gone."""
        slot_key = self._keys.get(key)
        if slot_key is None:
            return None
        at_us = slot_key.follow_clock(now_us)
        if not slot_key.is_held(fence, at_us):
            return None
        slot_key.remove(fence)
        expires_us = slots.renewed_us(limit, at_us)
        slot_key.put(fence, expires_us, at_us)
        return expires_us

    def release(self, key: str, fence: int, now_us: int) -> bool:
        """Releases a lease; returns whether it was still held."""
        slot_key = self._keys.get(key)
        if slot_key is None or not slot_key.is_held(fence, slot_key.follow_clock(now_us)):
            return False
        slot_key.remove(fence)
        if slot_key.is_dead(now_us):
            del self._keys[key]
        return True

    def leave(self, key: str, ticket: int) -> bool:
        """Gives a ticket up; returns whether there was one."""
        slot_key = self._keys.get(key)
        if slot_key is None or not slot_key.is_waiting(ticket):
            return False
        slot_key.remove(ticket)
        slot_key.dequeue(ticket)
        return True

    def peek(self, key: str, limit: Slots, now_us: int) -> Outcome:
        """Returns the outcome of a peek; `allowed` is whether a new caller would get a slot."""
        slot_key = self._keys.get(key) or _Key()
        return slot_key.judge(limit, now_us, slot_key.follow_clock(now_us), 0, None)[0]

    def reset(self, key: str) -> None:
        """Ends all leases and tickets of the key. Its numbers go on, so no fence comes twice."""
        slot_key = self._keys.get(key)
        if slot_key is not None:
            slot_key.expires_us.clear()
            slot_key.expiries.clear()
            slot_key.queue.clear()

    def clear(self) -> None:
        """Ends all leases and tickets of all keys. Numbers go on here, too."""
        self._keys.clear()

    def sweep(self, now_us: int, keys: int = _SWEEP_SIZE) -> None:
        """Examines the keys that were not examined for longest, and drops the dead ones."""
        for _ in range(min(keys, len(self._keys))):
            key = next(iter(self._keys))
            if self._keys[key].is_dead(now_us):
                del self._keys[key]
            else:
                self._keys.move_to_end(key)
