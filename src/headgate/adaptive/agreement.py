"""One limit for all processes in front of one service: the median of what each has learned.

Each process sees its own calls only. With the same slow service behind them, four processes come to four limits,
of which one may be three times another's: whoever has more calls in flight sees a longer queue as its own. So once
a second they agree: each goes on from the median of all. A process that sees something else than the others (a
slow network, a neighbour that takes its CPU) moves nobody.

    three processes or more    the median of those that learned lately; all of them go on from it
    two or one                 each keeps its own: of two, nobody can tell which one is wrong

Votes are whole limits, as they are enforced. With their fractions, four processes with five calls in flight each
would round up together.

A process without calls has learned nothing lately, and has no vote; but it goes on from the median, so that it
starts right when calls come.

Laws (tests/adaptive/test_agreement.py): the agreed limit lies between the least and the greatest vote; a single
process cannot move it beyond its neighbours' limits; the order of votes does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

MIN_VOTES: Final = 3


def agreed_limit(votes: Sequence[float]) -> float | None:
    """Returns the limit to go on from; None if there are too few votes.

    >>> agreed_limit([5, 6, 25, 4]), agreed_limit([5, 25])
    (5.5, None)
    """
    return float(median(votes)) if len(votes) >= MIN_VOTES else None
