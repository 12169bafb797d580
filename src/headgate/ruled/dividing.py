"""A limit that is split: every process counts an even share of it by itself, at least one unit.

Not every limit can be divided among any number: nginx's leaky bucket counts in thousandths of a unit per second,
and 1/minute is only 16 of them. If a book says among how many (`nodes`), what cannot be divided is refused when
the book is loaded, before anybody follows or keeps it: `divisible`. If nobody can know beforehand, because
processes come and go, no call fails for it: they divide as finely as they can.
"""

from __future__ import annotations

from collections.abc import Iterator

from headgate.engine.fallback.share import share
from headgate.errors import InvalidRulebook
from headgate.model.limit import Limit
from headgate.rules.rule import Choice, Limits, Rulebook


def divisible(book: Rulebook) -> Rulebook:
    """The book itself; InvalidRulebook if it splits a limit, or a candidate, that cannot be divided."""
    for rule in book.rules:
        if rule.where == "split" and rule.nodes is not None:
            for choice in (rule.limit, rule.candidate):
                for limit in () if choice is None else _all(choice):
                    if _share(limit, rule.nodes, rule.nodes - 1) is None:
                        raise InvalidRulebook(
                            [(rule.line, f'rule "{rule.name}": {limit} is too slow for {rule.nodes} nodes.')],
                            book.source,
                        )
    return book


def even(limit: Limit, nodes: int, rank: int) -> Limit:
    """The share of this rank among so many, or among fewer if they are too many for it."""
    return _share(limit, nodes, rank) or even(limit, nodes // 2, 0)


def _share(limit: Limit, nodes: int, rank: int) -> Limit | None:
    return share(limit, nodes, rank) or share(limit, nodes, 0)


def _all(choice: Choice[Limits]) -> Iterator[Limit]:
    yield from choice.otherwise
    for _, limits in choice.cases:
        yield from limits
