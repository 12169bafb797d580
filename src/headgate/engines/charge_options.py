"""On what terms a charge is decided: all that a rule says to an engine, beside its limit.

A meter is an engine's hand on one limit, on these terms. Charges that are decided together, follow each other, and
have the same Terms and the same key are one rule's: they are refused together and locked out together.

    aside       decided and kept by its own verdict, whatever the others say; never in their way (a shadow)
    lockout     refusals of the rule are counted in the same script, and too many of them refuse for longer
    overrides   the key may have limits of its own, kept beside its counts and read by the same script
    fallback    what is done when no answer comes; None: what the engine around does
    deadline    seconds that this rule waits for an answer; of several rules the shortest
    prefetch    how long units of a hot key may be held ahead, in microseconds, and how many; None: exact
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from headgate.algorithms.lockout import Lockout
from headgate.engines.url_options import Instead


@dataclass(frozen=True, slots=True, eq=False)
class ChargeOptions:
    """Compared by identity: one object for each rule."""

    rule: str
    aside: bool = False
    lockout: Lockout | None = None
    overrides: bool = False
    fallback: Instead | None = None
    deadline: float | None = None
    prefetch: tuple[int, int | None] | None = None

    plain: bool = field(init=False)  # a charge by itself is no more than a take: its script need know nothing
    silent: bool = field(init=False)  # and in company neither

    def __post_init__(self) -> None:
        plain = self.lockout is None and not self.overrides
        object.__setattr__(self, "plain", plain)
        object.__setattr__(self, "silent", plain and not self.aside)


class HasChargeOptions(Protocol):
    """A meter, or what an engine has for it."""

    @property
    def terms(self) -> ChargeOptions | None: ...


M = TypeVar("M", bound=HasChargeOptions)


def all_silent(charges: Sequence[tuple[M, str, int]]) -> bool:
    """Whether all of them are no more than takes in company."""
    for meter, _, _ in charges:
        terms = meter.terms
        if terms is not None and not terms.silent:
            return False
    return True


def parts(charges: Sequence[tuple[M, str, int]]) -> list[list[tuple[M, str, int]]]:
    """One rule's charges each, or as many plain ones as follow each other: those are all or none anyway."""
    if all_silent(charges):
        return [list(charges)]
    found: list[list[tuple[M, str, int]]] = []
    last: ChargeOptions | None = None
    whose = ""
    for charge in charges:
        meter, key, _ = charge
        terms = meter.terms
        if terms is not None and terms.silent:
            terms = None
        if not found or terms is not last or (terms is not None and key != whose):
            found.append([])
        found[-1].append(charge)
        last, whose = terms, key
    return found
