"""Everything headgate raises, drawn once.

    HeadgateError
    ├── InvalidRule         a limit or rule that cannot be: what was expected, and the nearest valid form
    ├── InvalidCharge       a call that cannot be judged: a cost below zero, an empty key
    ├── RateLimited         carries .decision; raised only for callers who asked for raising
    └── EngineUnavailable   no decision could be made; the cause is chained; never swallowed silently

A message is a sentence to whoever can fix it. The first two are also ValueErrors, because that is what
they are to a program that has never heard of headgate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.model.decision import Decision


class HeadgateError(Exception):
    """Anything headgate raises on purpose."""


class InvalidRule(HeadgateError, ValueError):
    """A limit or rule that cannot be what it says."""


class InvalidCharge(HeadgateError, ValueError):
    """A key, cost or combination of charges that cannot be judged. Nothing was charged."""


class RateLimited(HeadgateError):
    """The call was refused; ``decision`` says by what, and when to come back."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(str(decision))
        self.decision = decision


class EngineUnavailable(HeadgateError):
    """No decision could be made: the engine did not answer, or refused to.

    ``key``: one of those whose part of the engine it was, if only a part of it gave no answer.
    """

    key: str | None = None
