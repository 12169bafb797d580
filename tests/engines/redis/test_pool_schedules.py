"""Every schedule of a few callers of a connection pool: none waits for ever, no connection has two users.

The pool's own state (pool_state.py) is driven here; what the threads do around it is spelled out as steps, one for
each section that the pool runs under its lock and one for each thing that it does outside. All orders of these
steps are run, with connections that fail to open or break, and with a caller in which a signal handler raises
between any two steps, up to twice. States that were met before are not run again.

The reason for its length: one simulator and the laws that it checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headgate.engines.redis.pool_state import PoolEntry, PoolState, PoolWaiter

NOTHING, REPLY, TROUBLE = "nothing", "own reply", "trouble"


class Caller(PoolWaiter):
    """A caller between two of its steps."""

    def __init__(self, number: int, deadline_at: float) -> None:
        super().__init__(deadline_at)
        self.number = number
        self.at = "begins"
        self.woken = False
        self.reply = NOTHING
        self.broken = False  # whether what it uses is of no more use
        self.unsent = False  # whether it was interrupted before it sent the batch
        self.batch: list[Caller] = []


class Opener:
    """The thread that opens a connection; it is alive until it has put it into its entry."""

    alive = True

    def is_alive(self) -> bool:
        return self.alive


@dataclass
class PoolSnapshot:
    """Everything at one instant. Connections are numbers: each has one of its own."""

    state: PoolState
    callers: list[Caller]
    openers: list[tuple[PoolEntry, Opener]] = field(default_factory=list)
    opened: int = 0
    interrupts: int = 0  # that may still come; to the first caller
    failures: int = 0  # of connections, likewise
    ticks: int = 0  # times that somebody looked because it was not woken

    def copy(self) -> PoolSnapshot:
        old, new = self.state, PoolState(0)
        entries = {id(entry): PoolEntry() for entry in old.entries}
        callers = {id(caller): Caller(caller.number, caller.deadline_at) for caller in self.callers}
        openers = {id(opener): Opener() for _, opener in self.openers}

        def entry_of(entry: PoolEntry | None) -> PoolEntry | None:
            return None if entry is None else entries.setdefault(id(entry), PoolEntry())

        for caller in self.callers:
            twin = callers[id(caller)]
            twin.at, twin.woken, twin.reply = caller.at, caller.woken, caller.reply
            twin.broken, twin.unsent = caller.broken, caller.unsent
            twin.batch = [callers[id(each)] for each in caller.batch]
            twin.entry = entry_of(caller.entry)
            twin.batch_leader = None if caller.batch_leader is None else callers[id(caller.batch_leader)]
        for entry in old.entries:
            copy = entries[id(entry)]
            copy.connection, copy.until = entry.connection, entry.until
            copy.user = None if entry.user is None else callers[id(entry.user)]
            copy.opening = None if entry.opening is None else openers.get(id(entry.opening))
        new.entries = [entries[id(entry)] for entry in old.entries]
        new.waiting = [callers[id(each)] for each in old.waiting]
        return replace(
            self,
            state=new,
            callers=[callers[id(caller)] for caller in self.callers],
            openers=[(entries[id(entry)], openers[id(opener)]) for entry, opener in self.openers],
        )

    def key(self) -> Any:
        place = {id(entry): number for number, entry in enumerate(self.state.entries)}
        # A connection's number says nothing but which one it is.
        return (
            tuple(
                (
                    *(c.at, c.woken, c.reply, c.broken, c.unsent),
                    *(None if c.entry is None else place[id(c.entry)], number_of(c.batch_leader)),
                    *map(number_of, c.batch),
                )
                for c in self.callers
            ),
            tuple(
                (e.connection is not None, number_of(e.user), e.opening is not None) for e in self.state.entries
            ),
            tuple(map(number_of, self.state.waiting)),
            (self.interrupts, self.failures, self.ticks > 0),
        )

    def steps(self) -> Iterator[PoolSnapshot]:
        """Returns one snapshot for each event that may happen next."""
        for number, caller in enumerate(self.callers):
            for kind in self._kinds(caller):
                snapshot = self.copy()
                CallerStep(snapshot, snapshot.callers[number]).take(kind)
                yield snapshot
        for number in range(len(self.openers)):
            for fails in (False, True)[: 1 + (self.failures > 0)]:
                snapshot = self.copy()
                snapshot._open(number, fails)
                yield snapshot

    def sleeps(self) -> bool:
        """Returns whether nothing happens but that WAKE_S goes by."""
        return not self.openers and all(
            caller.at == "ended" or (caller.at == "sleeps" and not caller.woken) for caller in self.callers
        )

    def after_a_look(self) -> Iterator[PoolSnapshot]:
        """Returns one snapshot for each sleeping caller, after it looked again by itself."""
        for number, caller in enumerate(self.callers):
            if caller.at == "sleeps":
                snapshot = self.copy()
                snapshot.ticks += 1
                looks = snapshot.callers[number]
                CallerStep(snapshot, looks).take("goes on")
                CallerStep(snapshot, looks).take("goes on")
                if looks.at == "sleeps" and snapshot.state.is_orphaned(looks):
                    answer(looks, TROUBLE)
                yield snapshot

    def _kinds(self, caller: Caller) -> Iterator[str]:
        if caller.at == "ended":
            return
        if caller.at != "sleeps" or caller.woken:
            yield "goes on"
        if caller.at in ("asks alone", "asks for all") and self.failures:
            yield "breaks"
        if caller.number == 0 and self.interrupts:
            yield "interrupted"
            if caller.at == "asks for all":
                yield "interrupted before it sends"

    def _open(self, number: int, fails: bool) -> None:
        entry, opener = self.openers.pop(number)
        opener.alive = False
        if fails:
            self.failures -= 1
            entry.opening = None
            for caller in self.state.waiting:
                answer(caller, TROUBLE)
            self.state.waiting[:] = []
        else:
            self.opened += 1
            assert self.state.set_connection(entry, self.opened)
            wake(self.state)


def number_of(caller: Any) -> int | None:
    return None if caller is None else caller.number


def wake(state: PoolState) -> None:
    patient = state.most_patient()
    if patient is not None:
        patient.woken = True


def answer(caller: Caller, reply: str) -> None:
    if caller.reply == NOTHING:
        caller.reply = reply
    caller.woken = True


class CallerStep:
    """One step of one caller, as ConnectionPool takes it."""

    def __init__(self, snapshot: PoolSnapshot, caller: Caller) -> None:
        self.world, self.caller, self.state = snapshot, caller, snapshot.state

    def take(self, kind: str) -> None:
        if kind.startswith("interrupted"):
            self.caller.unsent = kind != "interrupted"
            self._interrupted()
        elif kind == "breaks":
            self.world.failures -= 1
            self.caller.broken = True
            getattr(self, "_" + self.caller.at.replace(" ", "_"))()
        else:
            getattr(self, "_" + self.caller.at.replace(" ", "_"))()

    def _begins(self) -> None:
        self.caller.at = "enqueues" if self.state.waiting else "claims"

    def _claims(self) -> None:
        self.caller.at = "asks alone" if self.state.claim(self.caller, self.caller.deadline_at) else "enqueues"

    def _asks_alone(self) -> None:
        self.caller.reply = TROUBLE if self.caller.broken else REPLY
        self.caller.at = "releases"

    def _releases(self) -> None:
        """The plain assignments of a `finally`: no handler runs between them."""
        caller = self.caller
        entry, caller.entry = caller.entry, None
        assert entry is not None
        assert entry.user is caller
        if caller.broken:
            entry.connection = None
        entry.user = None
        caller.broken = False
        caller.at = "wakes"

    def _wakes(self) -> None:
        if self.caller.unsent:
            self.state.requeue(self.caller.batch)
        else:
            for each in self.caller.batch:  # an interrupted one has not answered them yet
                answer(each, TROUBLE)
        self.caller.batch = []
        wake(self.state)
        if self.caller.unsent:
            self.caller.at = "leaves"
        else:
            self.caller.at = "turns" if self.caller.reply == NOTHING else "ended"

    def _enqueues(self) -> None:
        self.state.waiting.append(self.caller)
        self._turns()

    def _turns(self) -> None:
        caller, state = self.caller, self.state
        caller.at = "sleeps"
        if caller.reply != NOTHING:
            caller.at = "ended"
        elif caller in state.waiting:
            if not state.has_idle():
                entry = state.entry_to_open(0.0)
                if entry is not None:
                    opener = entry.opening = Opener()
                    self.world.openers.append((entry, opener))
            else:
                leader = state.claim_for_batch(caller)
                if leader is caller:
                    caller.at = "takes the batch"
                else:
                    leader.woken = True

    def _sleeps(self) -> None:
        self.caller.woken = False
        self.caller.at = "turns"

    def _takes_the_batch(self) -> None:
        self.state.take_batch(self.caller, self.caller.batch)
        self.caller.at = "asks for all" if self.caller.batch else "releases"  # another one may ask for all already

    def _asks_for_all(self) -> None:
        for each in self.caller.batch:
            assert each.reply == NOTHING or each.number == 0  # who has left hears nothing
            answer(each, TROUBLE if self.caller.broken else REPLY)
        self.caller.batch = []
        self.caller.at = "releases"

    def _leaves(self) -> None:
        self.state.leave(self.caller)
        wake(self.state)
        self.caller.at = "ended"

    def _interrupted(self) -> None:
        """A handler raises before the step that would have come: what is left to do is each `finally`."""
        snapshot, caller = self.world, self.caller
        snapshot.interrupts -= 1
        if caller.at in ("wakes", "leaves"):  # in the midst of cleaning up
            caller.at, caller.reply = "ended", TROUBLE
            return
        if caller.entry is not None:
            # Whether anything was sent is not asked: an exchange that was begun breaks the connection.
            caller.broken = caller.broken or caller.at != "releases"
            caller.reply = TROUBLE
            self._releases()
        else:
            caller.reply, caller.at = TROUBLE, "leaves"


def explore(worlds: list[PoolSnapshot]) -> tuple[int, int]:
    """Run every schedule; how many states there were, and in how many of them somebody was not woken in time."""
    met, ticked, todo = {snapshot.key() for snapshot in worlds}, 0, worlds
    while todo:
        snapshot = todo.pop()
        holds(snapshot)
        after = list(snapshot.steps())
        if snapshot.sleeps():
            ticks = [tick for tick in snapshot.after_a_look() if tick.key() != replace(snapshot, ticks=1).key()]
            assert ticks or all(caller.at == "ended" for caller in snapshot.callers), (
                snapshot
            )  # somebody sleeps for ever
            ticked += len(ticks)
            after += ticks
            if not after:
                at_rest(snapshot)
        for next_one in after:
            key = next_one.key()
            if key not in met:
                met.add(key)
                todo.append(next_one)
    return len(met), ticked


def holds(snapshot: PoolSnapshot) -> None:
    """Checks what must be true at every instant."""
    users = [entry.user for entry in snapshot.state.entries if entry.user is not None]
    assert len(users) == len(set(map(id, users)))
    connections = [entry.connection for entry in snapshot.state.entries if entry.connection is not None]
    assert len(connections) == len(set(connections))
    for caller in snapshot.callers:
        assert caller.entry is None or caller.entry.user is caller
    assert len(snapshot.openers) <= len(snapshot.state.entries)


def at_rest(snapshot: PoolSnapshot) -> None:
    """Checks what must be true when nothing more happens."""
    assert [caller.at for caller in snapshot.callers] == ["ended"] * len(snapshot.callers), snapshot
    assert all(caller.reply != NOTHING for caller in snapshot.callers)
    assert not snapshot.state.waiting or snapshot.state.waiting == [
        snapshot.callers[0]
    ]  # interrupted while it left
    assert [entry.user for entry in snapshot.state.entries] == [None] * len(snapshot.state.entries)
    assert not any(entry.opening and entry.opening.is_alive() for entry in snapshot.state.entries)


def snapshot(
    callers: int, entries: int, *, interrupts: int = 0, failures: int = 0, hurried: bool = False, idle: int = 0
) -> PoolSnapshot:
    state = PoolState(entries)
    for entry in state.entries[:idle]:
        entry.connection = -1 - state.entries.index(entry)
    made = [Caller(number, 1.0 if hurried and number == 0 else 9.0) for number in range(callers)]
    return PoolSnapshot(state, made, interrupts=interrupts, failures=failures)


@pytest.mark.parametrize("hurried", [False, True])
@pytest.mark.parametrize(("callers", "entries"), [(2, 1), (3, 1), (3, 2), (4, 1)])
def test_every_waiter_is_woken(callers: int, entries: int, hurried: bool) -> None:
    """And nobody has to look by itself: each is woken when there is something to do."""
    begin = [snapshot(callers, entries, hurried=hurried, idle=idle) for idle in range(entries + 1)]
    states, ticked = explore(begin)
    assert states > 20
    assert ticked == 0


@pytest.mark.parametrize(("callers", "entries"), [(2, 1), (3, 1), (3, 2)])
def test_connections_that_break_or_do_not_open(callers: int, entries: int) -> None:
    begin = [snapshot(callers, entries, failures=2, idle=idle) for idle in range(entries + 1)]
    _, ticked = explore(begin)
    assert ticked == 0


@pytest.mark.parametrize("hurried", [False, True])
@pytest.mark.parametrize(("callers", "entries"), [(2, 1), (3, 1), (3, 2)])
def test_a_caller_that_is_interrupted_anywhere(callers: int, entries: int, hurried: bool) -> None:
    """Even where it is interrupted again while it cleans up, every entry is free in the end, all others are
    answered, and one who was not woken looks by itself."""
    begin = [
        snapshot(callers, entries, interrupts=2, failures=entries == 1, hurried=hurried, idle=idle)
        for idle in range(entries + 1)
    ]
    explore(begin)


def test_an_unreleased_connection_is_taken_back_after_its_deadline() -> None:
    class StubConnection:
        ended = False

        def hang_up(self) -> None:
            self.ended = True

    state, connection, lost, next_one = PoolState(1), StubConnection(), Caller(0, 5.0), Caller(1, 9.0)
    (entry,) = state.entries
    entry.connection = connection
    assert state.claim(lost, 5.0)
    assert not state.claim(next_one, 9.0)
    assert state.entry_to_open(5.9) is None
    healed = state.entry_to_open(6.1)
    assert healed is state.entries[0]
    assert healed is not entry
    assert connection.ended
    assert state.set_connection(healed, StubConnection())
    assert state.claim(next_one, 9.0)
    entry.user = None  # the lost one comes to its end after all
    assert state.entries[0].user is next_one


def test_an_opener_that_died_is_replaced() -> None:
    state = PoolState(1)
    entry = state.entry_to_open(0.0)
    assert entry is not None
    entry.opening = opener = Opener()
    assert state.entry_to_open(0.0) is None
    opener.alive = False  # it was never started, or ended without a word
    assert state.entry_to_open(0.0) is entry
