"""A history: the calls and their answers, as the callers saw them.

Nobody who calls knows when a decision was really made, only that it was after the call and before the answer.
Both instants are read from the machine's monotonic clock, which all processes share, and moved by one and the same
number to where the epoch's time was when the recording began. An operation that was answered before another was
called came before it; of any other two nobody can say, and the checker may choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from headgate.algorithms.decision import ALLOWED, AT_US, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.limit_syntax import parse

Verb = Literal["take", "peek", "refund", "reset"]


class Operation(NamedTuple):
    """One call with its answer."""

    who: str  # the caller: process.thread.task
    verb: Verb
    key: str
    units: int  # the cost of a take, the units that a refund asks back; 0 for the others
    receipt: Receipt | None  # of the charge that a refund gives back; the same caller made it
    outcome: Outcome | None  # a reset has none; those of a refund tell how things stand after it
    called_ns: int
    answered_ns: int
    charge_ns: int | None = None  # when that charge was called

    @property
    def at_us(self) -> int | None:
        """The engine's instant, as far as the answer names it."""
        return None if self.outcome is None else self.outcome[AT_US]

    @property
    def process(self) -> str:
        return self.who.partition(".")[0]

    @property
    def admitted(self) -> bool:
        return self.verb == "take" and self.outcome is not None and self.outcome[ALLOWED]

    @property
    def denied(self) -> bool:
        return self.verb == "take" and self.outcome is not None and not self.outcome[ALLOWED]

    @property
    def retry_us(self) -> int | None:
        return None if self.outcome is None else self.outcome[RETRY_AFTER_US]

    def __str__(self) -> str:
        return f"{self.who} {self.verb}({self.units or ''})"


class CallHistory(NamedTuple):
    """Everything that was done to some keys under one limit, which nobody had used before."""

    limit_text: str
    operations: Sequence[Operation]

    @property
    def limit(self) -> Limit:
        return parse(self.limit_text)

    def by_key(self) -> dict[str, list[Operation]]:
        """Keys know nothing of each other, so each is a history of its own."""
        keys: dict[str, list[Operation]] = {}
        for operation in self.operations:
            keys.setdefault(operation.key, []).append(operation)
        return keys
