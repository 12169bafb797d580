"""Divides a limit among processes that decide without each other.

When the engine does not answer, each of `count` members decides alone, by its share of the limit. There are two
ways to divide.

By rank (`share`), where every member knows a rank that no other has. Units are whole: of 10 units three members
get 4, 3 and 3, those with the lower ranks the more. Of 2 units two members get one each and the third gets none:
its share is None, and it refuses. The rate is divided among the members that have a share at all.

Equally (`equal_share`), where members know only their number, and where a rule is split. The rate is divided by
the count, whatever the burst, and each holds at least one unit: of 10 units three members get 3 each, and of 2
units one each, so up to max(units, count) pass at once. A window with fewer units than members is lengthened: of
2/s fixed three members get 1 per 1.5 s each. Calendar windows and slots cannot be lengthened; there each member
has one unit.

A rate is divided exactly where an algorithm can: a token bucket of 100/s among three is 100 per 3 s each. Where an
algorithm rounds by itself (nginx's thousandths in the leaky bucket, Guava's doubles in smooth) or an exact share
cannot be expressed, it is rounded down.

Laws (tests/engines/layers/test_limit_share.py, test_equal_share.py):
  - the shares of all ranks together hold at most the limit, in units at once and in rate;
  - equal shares together have at most the limit's rate, and hold at most max(units, count) at once; each holds at
    least one unit. Of calendars and slots, at most max(units, count) in each window or at a time;
  - no share is more than the limit divided by the count, rounded up;
  - a member that is alone has the limit as it is;
  - of a smooth limit this is the rate and the store; that the next call pays is Guava's law for each share apart.
    So a share by rank starts as if used, except that of the first rank (`fresh` is 1, and divided).
"""

from __future__ import annotations

from headgate.algorithms.limit import Limit


def share(limit: Limit, count: int, rank: int | None) -> Limit | None:
    """Returns the share of the member with this rank, from 0, among `count` members; None if nothing is left for
    it. A member without a rank gets an equal share."""
    if rank is None:
        return equal_share(limit, count)
    if count <= 1:
        return limit
    units = limit.units_at_once
    return limit.divide(count, units_for_rank(units, count, rank), min(count, units))


def equal_share(limit: Limit, count: int, rank: int | None = None) -> Limit | None:
    """Returns the share of each of `count` members: the rate divided by the count, and at least one unit. Leftover
    units go to the lower ranks, where ranks are known. None if the limit is too slow to be divided so."""
    if count <= 1:
        return limit
    return limit.divide(count, max(1, units_for_rank(limit.units_at_once, count, rank)), count)


def units_for_rank(total: int, count: int, rank: int | None) -> int:
    """Returns how many of the total units fall to this rank; without a rank, those that fall to every member."""
    return total // count + (rank is not None and rank < total % count)
