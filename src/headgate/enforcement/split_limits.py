"""Divides the limits of split rules: every process counts an equal share by itself, at least one unit.

The rate is divided by the number of processes, whatever the burst. Not every limit can be divided among any
number: nginx's leaky bucket counts in thousandths of a unit per second, and 1/minute is only 16 of them; the
windows of a calendar cannot be lengthened, and a slot is a slot. If a rulebook states the number (`nodes`), a
limit that cannot be divided is refused when the rulebook is loaded, before it takes effect or is cached:
`check_split_limits`. If the number is not known, because processes come and go, no call fails for it: limits are
divided as finely as they can be, and each process keeps at least one unit of a calendar window, and one slot.
"""

from __future__ import annotations

from collections.abc import Iterator

from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.engines.layers.fallback.limit_share import equal_share
from headgate.errors import InvalidRulebook
from headgate.rules.rule import Choice, Limits, Rulebook


def check_split_limits(book: Rulebook) -> Rulebook:
    """Returns the rulebook; raises InvalidRulebook if it splits a limit or candidate that cannot be divided."""
    for rule in book.rules:
        if rule.where == "split" and rule.nodes is not None:
            for choice in (rule.limit, rule.candidate):
                for limit in () if choice is None else _limits_of(choice):
                    reason = _indivisible(limit, rule.nodes)
                    if reason is not None:
                        raise InvalidRulebook([(rule.line, f'rule "{rule.name}": {limit} {reason}')], book.source)
    return book


def even_share(limit: Limit, nodes: int, rank: int | None) -> Limit:
    """Returns the share of one process among `nodes`, or among fewer if the limit cannot be divided so finely."""
    return equal_share(limit, nodes, rank) or even_share(limit, nodes // 2, None)


def _indivisible(limit: Limit, nodes: int) -> str | None:
    """Returns why a limit cannot be divided among `nodes`, and what to do; None if it can."""
    discrete = isinstance(limit, Slots) or limit.is_calendar
    if discrete and limit.units_at_once < nodes:
        return (
            f"has fewer units than {nodes} nodes, and each of them needs one. "
            "Raise the limit, lower nodes, or write where: cluster."
        )
    if equal_share(limit, nodes) is None:
        return f"is too slow for {nodes} nodes. Lower nodes, or write where: cluster."
    return None


def _limits_of(choice: Choice[Limits]) -> Iterator[Limit]:
    yield from choice.otherwise
    for _, limits in choice.cases:
        yield from limits
