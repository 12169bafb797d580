"""A request of an operator that was let in and read, and why it may come to nothing."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from headgate.errors import HeadgateError, InvalidRule
from headgate.operations.publish_rulebook import Problem

MAX_ROWS = 10_000  # rows in one answer


class AdminRequest(NamedTuple):
    path: dict[str, str]
    query: dict[str, str]
    body: Any  # what the route says: a struct, or the bytes of a rulebook
    format: str  # of a rulebook
    expected: int | None  # the edition that must be in force
    author: str
    remote: str

    def top(self, otherwise: int) -> int:
        """How many rows are wanted."""
        given = self.query.get("top")
        if given is None:
            return otherwise
        if not re.fullmatch(r"[0-9]{1,5}", given) or not 1 <= int(given) <= MAX_ROWS:
            raise InvalidRule(f"top is a whole number from 1 to {MAX_ROWS}, not {given[:20]!r}.")
        return int(given)


class NotFound(HeadgateError):
    """What was asked for by its name is not there."""


class Conflict(HeadgateError):
    """It cannot be done with these settings, or not any more."""


class KeyScanBusy(HeadgateError):
    """Somebody else is at it."""


class UnpublishableRulebook(HeadgateError):
    """A rulebook that cannot be published; `problems` says all that is wrong."""

    def __init__(self, problems: list[Problem]) -> None:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0].told}{more}")
        self.problems = problems
