"""DecisionCounts: how many calls a rule allowed, refused, delayed or shed in a span of time, and who decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self


class DecisionCounts(NamedTuple):
    """The counts of one rule. A call is counted once per rule, by the verdict of that rule alone.

    allowed            calls that the rule let pass, at once or after a delay
    refused            calls that the rule refused by its limit, a lockout or a missing dimension
    shed               calls that were refused because the service is overloaded, without asking the limit
    delayed            allowed calls that had to wait
    near_limit         allowed calls that left less than a fifth of the limit
    shadow_allowed, shadow_refused          verdicts of a rule in shadow mode, which are not enforced
    candidate_allowed, candidate_refused    verdicts of the rule's candidate limit, which are not enforced
    by_denial_cache, by_prefetch, by_fallback    calls that one of these layers decided; `by_engine` has the rest
    errors             calls that could not be decided; they belong to no rule (NO_RULE)

    >>> counts = DecisionCounts(allowed=7, refused=3, by_denial_cache=2)
    >>> counts.calls, counts.by_engine, counts.refused_share
    (10, 8, 0.3)
    """

    allowed: int = 0
    refused: int = 0
    shed: int = 0
    delayed: int = 0
    near_limit: int = 0
    shadow_allowed: int = 0
    shadow_refused: int = 0
    candidate_allowed: int = 0
    candidate_refused: int = 0
    by_denial_cache: int = 0
    by_prefetch: int = 0
    by_fallback: int = 0
    errors: int = 0

    @property
    def calls(self) -> int:
        """All calls that the rule decided; those of a rule in shadow mode are in `shadow_calls`."""
        return self.allowed + self.refused + self.shed

    @property
    def shadow_calls(self) -> int:
        """All verdicts of the rule in shadow mode."""
        return self.shadow_allowed + self.shadow_refused

    @property
    def candidate_calls(self) -> int:
        """All verdicts of the candidate limit."""
        return self.candidate_allowed + self.candidate_refused

    @property
    def by_engine(self) -> int:
        """Calls that the engine itself decided."""
        return self.calls - self.shed - self.by_denial_cache - self.by_prefetch - self.by_fallback

    @property
    def degraded(self) -> int:
        """Calls that a fallback decided, because the engine did not reply."""
        return self.by_fallback

    @property
    def refused_share(self) -> float:
        """The refused and shed calls, as a share of all; 0 without calls."""
        return (self.refused + self.shed) / self.calls if self.calls else 0.0

    def plus(self, other: Iterable[int]) -> Self:
        """Returns the sum of both.

        >>> DecisionCounts(allowed=1).plus(DecisionCounts(allowed=2, errors=1))[:2]
        (3, 0)
        """
        return type(self)(*map(int.__add__, self, other))

    def as_dict(self) -> dict[str, int]:
        """Returns all counts by name, also the computed ones, as documents show them.

        >>> DecisionCounts(allowed=7).as_dict()["by_engine"]
        7
        """
        return {"calls": self.calls, **self._asdict(), "by_engine": self.by_engine, "degraded": self.degraded}


FIELDS: Final[Sequence[str]] = DecisionCounts._fields
NO_RULE: Final = ""  # the name under which calls are counted that no rule applied to, and errors
OTHER_RULES: Final = "*other*"  # the name under which rules beyond the bound are counted together
