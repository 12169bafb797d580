"""Charge options: everything that a rule passes to an engine in addition to its limit.

A meter is a limit bound to an engine, with these options. Consecutive charges of one decision that have the same
ChargeOptions and the same key belong to one rule: they are refused together and locked out together.

    is_shadow   a shadow: decided and stored by its own verdict, with no effect on the other charges
    lockout     refusals of the rule are counted in the same script, and too many of them refuse for longer
    overrides   the key may have its own limits, stored beside its counts and read by the same script
    pauses      the key can be paused, which holds up these counts; stored beside them, read by the same script
    fallback    what happens when the engine does not answer; None: what the layer around the engine does
    deadline    seconds that this rule waits for an answer; the shortest of several rules applies
    prefetch    how long units of a hot key may be held ahead, in microseconds, and how many; None: exact
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from headgate.algorithms.lockout import Lockout
from headgate.engines.url_options import FallbackMode


@dataclass(frozen=True, slots=True, eq=False)
class ChargeOptions:
    """The options of one rule. Compared by identity: one object for each rule."""

    rule: str
    is_shadow: bool = False
    lockout: Lockout | None = None
    overrides: bool = False
    fallback: FallbackMode | None = None
    deadline: float | None = None
    prefetch: tuple[int, int | None] | None = None
    pauses: tuple[tuple[str, str], ...] | None = None  # the algorithm and the name of each count

    without_rule_state: bool = field(init=False)  # the limit alone decides a single charge: a take suffices
    limit_only: bool = field(init=False)  # and also a charge among others

    def __post_init__(self) -> None:
        without_rule_state = self.lockout is None and not self.overrides and self.pauses is None
        object.__setattr__(self, "without_rule_state", without_rule_state)
        object.__setattr__(self, "limit_only", without_rule_state and not self.is_shadow)


def pause_only(options: ChargeOptions | None) -> ChargeOptions | None:
    """Returns options that only let the counts be held up by pauses; None if the key cannot be paused."""
    if options is None or options.pauses is None:
        return None
    return ChargeOptions(options.rule, pauses=options.pauses)


class HasChargeOptions(Protocol):
    """A meter, or what an engine has in its place."""

    @property
    def options(self) -> ChargeOptions | None: ...


M = TypeVar("M", bound=HasChargeOptions)


def all_limit_only(charges: Sequence[tuple[M, str, int]]) -> bool:
    """Returns whether the limits alone decide all of these charges."""
    for meter, _, _ in charges:
        options = meter.options
        if options is not None and not options.limit_only:
            return False
    return True


def group_by_rule(charges: Sequence[tuple[M, str, int]]) -> list[list[tuple[M, str, int]]]:
    """Groups charges by rule. Consecutive charges without options form one group: they are all or none anyway."""
    if all_limit_only(charges):
        return [list(charges)]
    groups: list[list[tuple[M, str, int]]] = []
    previous: ChargeOptions | None = None
    previous_key = ""
    for charge in charges:
        meter, key, _ = charge
        options = meter.options
        if options is not None and options.limit_only:
            options = None
        if not groups or options is not previous or (options is not None and key != previous_key):
            groups.append([])
        groups[-1].append(charge)
        previous, previous_key = options, key
    return groups
