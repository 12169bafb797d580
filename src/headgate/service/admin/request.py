"""An authorized and parsed request of an operator, and the errors of its handlers."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from headgate.errors import HeadgateError, InvalidRule
from headgate.operations.publish_rulebook import RulebookProblem

MAX_ROWS = 10_000  # in one response


class AdminRequest(NamedTuple):
    """A request of an operator."""

    path: dict[str, str]
    query: dict[str, str]
    body: Any  # the route's struct, or the bytes of a rulebook
    format: str  # of a rulebook
    expected: int | None  # the version that must be in force
    author: str
    remote: str
    reason: str = ""  # why it is changed, for the audit trail
    undoes: str = ""  # the entry of the audit trail that it undoes

    def top(self, default: int) -> int:
        """Returns how many rows are requested."""
        text = self.query.get("top")
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= MAX_ROWS:
            raise InvalidRule(f"top is a whole number from 1 to {MAX_ROWS}, not {text[:20]!r}.")
        return int(text)


class NotFound(HeadgateError):
    """There is nothing of this name."""


class Conflict(HeadgateError):
    """It cannot be done with these settings, or not any more."""


class KeyScanBusy(HeadgateError):
    """Another scan of the keys is running."""


class UnpublishableRulebook(HeadgateError):
    """A rulebook that cannot be published; `problems` lists all that is wrong."""

    def __init__(self, problems: list[RulebookProblem]) -> None:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0].message}{more}")
        self.problems = problems
