"""The search: is there one order of the operations in which the model gives every answer that was seen?

Law. A history is linearizable if its operations can be put into a row such that
  - what was answered before another was called stands before it,
  - the engine's instants never step back along the row,
  - and the model, asked along the row, each time at the instant that the answer names, gives all seven outcome.
A reset carries no instant: it may stand anywhere between its call and its answer.

Swings. About once in a million calls a script in Valkey 9.1.2 is told an earlier instant than the one before: 8
times in 7.2 million calls, by up to 281 us. So on Valkey one step back of at most a millisecond is forgiven in
each row. The answers must still be the model's, which knows clocks that swing.

The search (Wing and Gong, with the memory of Lowe) grows such a row. It tries what may come next, and goes back
when nothing may. It never looks twice at the same set of operations with the same state. Instants leave little to
try: only operations of the same microsecond, and resets. And a peek or a refusal that fits is put into the row at
once: it leaves no trace, so whatever could follow without it can still follow.

If there is no row, the longest beginning is told, with the state it ends in and, for everything that might have
come next, what the model answers there and what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import groupby, islice
from typing import Any, NamedTuple, Protocol

from headgate.algorithms import algorithm
from headgate.algorithms.decision import ALLOWED, Outcome, Receipt
from headgate.algorithms.limit import Limit
from tests.linearizability.history import CallHistory, Operation

MOST_LOOKED_AT = 200_000  # beginnings; a history that keeps its law needs a few thousand
MAX_SWING_US = 1000
MAX_SHOWN_OPERATIONS = 5  # operations at the end of the row that a counter-example shows

# Whether a refusal may have been given without the server, in the light of those that the server really gave.
Excuse = Callable[[Operation, Sequence[Operation]], bool]


class LawViolation(AssertionError):
    """The history breaks the law; the message is the counter-example."""


class Law(Protocol):
    """A law about the operations on one key; it returns a counter-example if it is broken."""

    def judge(self, limit: Limit, operations: Sequence[Operation]) -> str | None: ...


class ExactLaw:
    """The law above, nothing forgiven but so many swings of the engine's clock."""

    def __init__(self, swings: int = 0) -> None:
        self._swings = swings

    def judge(self, limit: Limit, operations: Sequence[Operation]) -> str | None:
        counter_example = Search(limit, operations).counter_example()
        if counter_example is not None and self._swings:
            return Search(limit, operations, swings=self._swings).counter_example()
        return counter_example


def check(history: CallHistory, law: Law | None = None) -> None:
    """Raises LawViolation, with a counter-example, unless every key keeps the law."""
    for key, operations in history.by_key().items():
        failure = (law or ExactLaw()).judge(history.limit, operations)
        if failure is not None:
            raise LawViolation(f'On the key "{key}" under "{history.limit_text}": {failure}')


class Model:
    """The model with its states as stored: texts compare and hash, and nobody can change them in place."""

    def __init__(self, limit: Limit) -> None:
        stored = import_module(f"headgate.algorithms.{limit.algorithm}")
        self._limit = limit
        self._algorithm = algorithm(limit)
        self._pack, self._unpack = stored.pack, stored.unpack

    def decide(self, state: str | None, now_us: int, cost: int) -> tuple[Outcome, str | None]:
        before = self._open(state)
        outcome, after = self._algorithm.decide(self._limit, before, now_us, cost, None)
        return outcome, state if after is before else self._pack_settled(after)

    def refund(self, state: str | None, now_us: int, units: int, receipt: Receipt) -> tuple[Outcome, str | None]:
        after = self._algorithm.refund(self._limit, self._open(state), now_us, units, receipt, False)
        state = state if after is None else self._pack_settled(after)
        return self.decide(state, now_us, 0)[0], state

    def _open(self, state: str | None) -> Any:
        return None if state is None else self._unpack(state)

    def _pack_settled(self, state: Any) -> str:
        write_pending = self._algorithm.write_pending
        text: str = self._pack(state if write_pending is None else write_pending(self._limit, state))
        return text


class Node(NamedTuple):
    """A beginning of the row. Sets of operations are bits: the n-th to be answered is bit n."""

    done: int
    group: int  # the instant that is being put into the row
    state: str | None
    real: int  # refusals that the model gave, where some may be excused by them
    at_us: int  # the instant of the last operation in the row that has one
    swings: int  # how many more times the instants may step back
    row: tuple[Any, ...]  # (number, the row before it)


class Search:
    """Looks for a row of the operations on one key."""

    def __init__(
        self, limit: Limit, operations: Sequence[Operation], excuse: Excuse | None = None, *, swings: int = 0
    ) -> None:
        self._model = Model(limit)
        self._excuse = excuse
        self._swings = swings
        self._operations = sorted(operations, key=lambda operation: operation.answered_ns)
        self._all = (1 << len(operations)) - 1
        numbered = list(enumerate(self._operations))
        self._resets = [number for number, operation in numbered if operation.at_us is None]
        self._loose = [number for number, operation in numbered if excuse is not None and operation.denied]
        self._is_loose = frozenset(self._loose)
        strict = sorted(set(range(len(numbered))).difference(self._resets, self._loose), key=self._at_us)
        self._groups = [list(group) for _, group in groupby(strict, self._at_us)]

    def counter_example(self) -> str | None:
        """None if there is a row."""
        start = Node(0, 0, None, 0, 0, self._swings, ())
        stack, deepest, looked_at = [start], start, 0
        seen: dict[tuple[int, str | None, int, int], list[int]] = {}
        while stack:
            node = stack.pop()
            if node.done == self._all:
                return None
            # With the same done and more refusals real, whatever can be excused here can be excused there.
            reals = seen.setdefault((node.done, node.state, node.at_us, node.swings), [])
            if any(node.real | real == real for real in reals):
                continue
            reals.append(node.real)
            looked_at += 1
            if looked_at > MOST_LOOKED_AT:
                return f"{self._explain_failure(deepest)}\n(After {MOST_LOOKED_AT} beginnings the search gave up.)"
            if node.done.bit_count() > deepest.done.bit_count():
                deepest = node
            stack.extend(self._following(node))
        return self._explain_failure(deepest)

    def _following(self, node: Node) -> list[Node]:
        """Every longer beginning that is worth a look, the likeliest last."""
        matching = []
        for number in self._candidates(node):
            operation = self._operations[number]
            outcome, after = self._answer(operation, node.state)
            if outcome != operation.outcome:
                continue
            longer = self._longer(node, number, after, real=True)
            no_trace = after == node.state and (operation.denied or operation.verb == "peek")
            no_trace = no_trace and number not in self._ahead(node)
            # The last of an instant ends the time in which a loose refusal could be the server's: let it wait.
            if no_trace and (number in self._is_loose or not self._loose or longer.group == node.group):
                return [longer]
            matching.append(longer)
        # Resets are alike: of those that may come now, the first to be answered stands for all of them.
        resets = [self._longer(node, number, None) for number in islice(self._open(node, self._resets), 1)]
        return [*resets, *self._excused(node), *matching]

    def _candidates(self, node: Node) -> Iterator[int]:
        """Returns the next operations for the model: loose refusals up to the next instant, then that instant."""
        group = self._next_group(node)
        if self._loose:
            after_us = self._at_us(self._groups[node.group - 1][0]) if node.group else 0
            for number in self._open(node, self._loose):
                at_us = self._at_us(number)
                if after_us <= at_us and (not group or at_us <= self._at_us(group[0])):
                    yield number
        if node.swings or not group or self._at_us(group[0]) >= node.at_us:
            yield from self._open(node, group)
        yield from self._open(node, self._ahead(node))

    def _ahead(self, node: Node) -> list[int]:
        """The operations that may have come before the next instant, if the engine's clock swung between them."""
        group, ahead = self._next_group(node), list[int]()
        if node.swings:
            for later in islice(self._groups, node.group + 1, None):
                if self._at_us(later[0]) > self._at_us(group[0]) + MAX_SWING_US:
                    break
                ahead += later
        return ahead

    def _next_group(self, node: Node) -> list[int]:
        """The operations of the instant that comes next."""
        return self._groups[node.group] if node.group < len(self._groups) else []

    def _excused(self, node: Node) -> Iterator[Node]:
        """A refusal that was not the server's, as late as it can be told: when others wait for it."""
        first = self._first_open(node)
        if self._excuse is not None and first in self._is_loose:
            real = [operation for number, operation in enumerate(self._operations) if node.real >> number & 1]
            if self._excuse(self._operations[first], real):
                yield self._longer(node, first, node.state)

    def _longer(self, node: Node, number: int, state: str | None, *, real: bool = False) -> Node:
        done, group = node.done | 1 << number, node.group
        while group < len(self._groups) and all(done >> one & 1 for one in self._groups[group]):
            group += 1
        at_us = node.at_us if number in self._is_loose else self._operations[number].at_us or node.at_us
        swings = node.swings - (at_us < node.at_us)
        reals = node.real | 1 << number if real and number in self._is_loose else node.real
        return Node(done, group, state, reals, at_us, swings, (number, node.row))

    def _open(self, node: Node, numbers: Sequence[int]) -> Iterator[int]:
        """Yields the operations not in the row yet that were called before any other of these was answered."""
        horizon_ns = self._operations[self._first_open(node)].answered_ns
        for number in numbers:
            if not node.done >> number & 1 and self._operations[number].called_ns <= horizon_ns:
                yield number

    def _first_open(self, node: Node) -> int:
        return (~node.done & (node.done + 1)).bit_length() - 1

    def _at_us(self, number: int) -> int:
        return self._operations[number].at_us or 0

    def _answer(self, operation: Operation, state: str | None) -> tuple[Outcome, str | None]:
        at_us = operation.at_us or 0
        if operation.receipt is not None:
            return self._model.refund(state, at_us, operation.units, operation.receipt)
        return self._model.decide(state, at_us, operation.units)

    def _explain_failure(self, node: Node) -> str:
        """Returns why no row goes on from here."""
        row, numbers = node.row, list[int]()
        while row:
            number, row = row
            numbers.insert(0, number)
        lines = [f"no order explains the answers. {len(numbers)} of {len(self._operations)} can be put in order:"]
        lines += ["    ..."] if len(numbers) > MAX_SHOWN_OPERATIONS else []
        lines += [f"    {self._line(self._operations[number])}" for number in numbers[-MAX_SHOWN_OPERATIONS:]]
        lines += [f"Then the state is {node.state or 'none'}, and nothing can come next:"]
        lines += self._objections(node)
        return "\n".join(lines)

    def _objections(self, node: Node) -> Iterator[str]:
        """Returns why none that may come next by the callers' clock does, nor the next by the engine's."""
        first, candidates = self._operations[self._first_open(node)], set(self._candidates(node))
        for number in range(len(self._operations)):
            operation, next_by_engine = self._operations[number], number in self._next_group(node)
            if number in candidates:
                why = f"{_shown(self._answer(operation, node.state)[0])} by the model"
            elif number in self._open(node, (number,)):
                why = "is not the next by the engine's clock"
            elif next_by_engine and not node.done >> number & 1:
                why = f"is the next by the engine's clock, but was called after {first} was answered"
            else:
                continue
            yield f"    {self._line(operation)}\n        {why}"

    def _line(self, operation: Operation) -> str:
        seen = "" if operation.outcome is None else f"  {_shown(operation.outcome)}"
        return f"{operation}  [{operation.called_ns} .. {operation.answered_ns} ns]{seen}"


def _shown(outcome: Outcome) -> str:
    _, remaining, retry_us, reset_us, delay_us, at_us, mark = outcome
    word = "allowed" if outcome[ALLOWED] else "denied"
    wait = "never" if retry_us is None else f"{retry_us}"
    return f"{word} remaining={remaining} retry={wait} reset={reset_us} delay={delay_us} at={at_us} mark={mark}"
