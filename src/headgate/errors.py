"""The tree of all exceptions that headgate raises.

    HeadgateError
    ├── InvalidRule         a limit or rule that is not valid: what was expected, and the nearest valid form
    │   └── InvalidRulebook     carries .problems: all that was found in a rulebook, each with its line
    ├── InvalidCharge       a call that cannot be decided: a cost below zero, an empty key
    ├── InvalidSetting      something that the service cannot be started with
    ├── InvalidLog          recorded traffic that cannot be read or used: what was looked for
    ├── MissingExtra        a package that this needs is not installed: which extra brings it
    ├── RateLimited         carries .decision; raised only by or_raise, guard and acquire
    ├── LeaseLost           a slot that a block held was lost before it ended; somebody else may hold it
    ├── EngineUnavailable   no decision could be made; the cause is chained; never swallowed silently
    └── CorruptState        a key of ours holds a value that headgate did not write; no fallback answers for it

A message is a sentence to the person who can fix the problem. The Invalid... errors are also ValueErrors, and
MissingExtra is an ImportError, because that is what they are to a program that does not know headgate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.algorithms.decision import Decision


class HeadgateError(Exception):
    """Anything headgate raises on purpose.

    >>> try:
    ...     Limiter("10/minit")
    ... except HeadgateError as error:
    ...     print(type(error).__name__)
    InvalidRule
    """


class InvalidRule(HeadgateError, ValueError):
    """A limit or rule that is not valid.

    >>> try:
    ...     Limiter("10/minit")
    ... except InvalidRule as error:
    ...     print(str(error).partition("Did")[2])
     you mean 10/minute?
    """


class InvalidRulebook(InvalidRule):
    """A rulebook that is not valid.

    ``problems``: line and sentence of every problem, in order; the line is None where the rulebook was not text,
    and the sentence then begins with the path. ``messages``: the same, ready to print.

    >>> try:
    ...     Limiter.from_rules({"rules": [{"name": "all"}]})
    ... except InvalidRulebook as error:
    ...     print(len(error.problems))
    1
    """

    def __init__(self, problems: Sequence[tuple[int | None, str]], source: str | None = None) -> None:
        self.problems: tuple[tuple[int | None, str], ...] = tuple(problems)
        self.source = source
        more = len(self.problems) - 1
        super().__init__(
            self.messages[0] + (f"\n({more} more {'problem' if more == 1 else 'problems'})" if more else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.source), vars(self)

    @property
    def messages(self) -> tuple[str, ...]:
        """All problems, ready to print, with the file and the line."""
        return tuple(self._format(line, sentence) for line, sentence in self.problems)

    def _format(self, line: int | None, sentence: str) -> str:
        if line is None:
            return f"{self.source}: {sentence}" if self.source else sentence
        return f"{self.source}:{line}: {sentence}" if self.source else f"line {line}: {sentence}"


class InvalidCharge(HeadgateError, ValueError):
    """A key, cost or combination of charges that cannot be decided. Nothing was charged.

    >>> try:
    ...     Limiter("3/s").take("ann", cost=-1)
    ... except InvalidCharge as error:
    ...     print(error)
    A cost is at least 0, not -1. To give units back, use refund.
    """


class InvalidSetting(HeadgateError, ValueError):
    """A setting of the service that is not known, cannot be read, or is not safe. Nothing was started."""


class InvalidLog(HeadgateError, ValueError):
    """A log of recorded traffic that cannot be read or used. Nothing was written."""


class MissingExtra(HeadgateError, ImportError):
    """A package that only a part of headgate needs is not installed. ``name``: the module that is missing.

    >>> issubclass(MissingExtra, ImportError)
    True
    """


class RateLimited(HeadgateError):
    """The call was refused; ``decision`` says by what, and when to come back.

    >>> try:
    ...     Limiter("3/s").take("ann", cost=4).or_raise()
    ... except RateLimited as error:
    ...     print(error.decision.allowed, error.decision.retry_after)
    False None
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__(str(decision))
        self.decision = decision

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision,), vars(self)


class LeaseLost(HeadgateError):
    """A slot was lost before the block that held it ended: somebody else may hold it, or may have held it.

    >>> clock = ManualClock()
    >>> try:
    ...     with Limiter("1 slot ttl 30s", clock=clock).acquire("exports") as lease:
    ...         clock.advance(60)
    ...         held = lease.renew()
    ... except LeaseLost:
    ...     print("somebody else may hold it")
    somebody else may hold it
    """


class EngineUnavailable(HeadgateError):
    """No decision could be made: the engine did not reply, or replied with an error.

    ``key``: one of the keys of the part that failed, if only a part of the engine did.

    >>> try:
    ...     Limiter("3/s", "redis://127.0.0.1:1").take("ann")
    ... except EngineUnavailable:
    ...     print("decide without it")
    decide without it
    """

    key: str | None = None


class CorruptState(HeadgateError):
    """A key of headgate on the server holds a value that headgate did not write: of another type, or unreadable.

    Nothing was changed. It is no outage, and does not pass by itself: somebody has to delete or move that key.

    >>> issubclass(CorruptState, EngineUnavailable)
    False
    """
