"""The table of verbs by algorithm. The tests run every cell on every engine; the docs show it."""

from __future__ import annotations

from typing import NamedTuple


class VerbExample(NamedTuple):
    """A limit under which ten units pass at once, and what follows after them."""

    text: str
    fresh: int  # remaining before anything was taken
    delay: float  # of those ten
    retry: float  # until one more can be taken
    wait: float  # that one more would be served after, if it reserved its place
    never: int  # a cost that can never pass
    changed: str  # the limit that set_limit turns to
    changed_left: int  # ... and what then remains of it


EXAMPLES = {
    "TokenBucket": VerbExample("10/s", 10, 0, 0.1, 0.1, 11, "20/s burst 40", 29),
    "LeakyBucket": VerbExample("10/s queue 9", 10, 0.9, 0.1, 1.0, 11, "10/s queue 19", 10),
    "FixedWindow": VerbExample("10/s fixed", 10, 0, 1.0, 1.0, 11, "15/s fixed", 5),
    "SlidingWindow": VerbExample("10/s sliding", 10, 0, 1.0, 1.0, 11, "15/s sliding", 5),
    "SlidingLog": VerbExample("10/s log", 10, 0, 1.0, 1.0, 11, "15/s log", 5),
    "Smooth": VerbExample("10/s smooth", 1, 0, 1.0, 1.0, 366 * 86_400 * 10 + 1, "20/s smooth", 0),
}
SLOTS = "10 slots ttl 30s"
ALGORITHMS = (*EXAMPLES, "Slots")
RATES = tuple(EXAMPLES)


def _rates(same: str = "yes", **differs: str) -> dict[str, str]:
    return {name: differs.get(name, same) for name in RATES}


_NO = dict.fromkeys(RATES, "no")

# What a cell says starts with "no" where the verb is refused, with a sentence.
TABLE: dict[str, dict[str, str]] = {
    "take": _rates(LeakyBucket="yes, with a delay to serve", Smooth="yes, as tryAcquire(0)")
    | {"Slots": "no: acquire"},
    "peek": _rates() | {"Slots": "yes"},
    "take_all": _rates() | {"Slots": "no: acquire"},
    "wait": _rates() | {"Slots": "no: acquire with a timeout"},
    "reserve": _rates(FixedWindow="yes, in later windows", SlidingWindow="yes, in later cells")
    | {"Slots": "no: acquire with a timeout"},
    "cancel": _rates(
        "yes, what no later place depends on",
        FixedWindow="yes, in the last window in use",
        SlidingWindow="yes",
        SlidingLog="yes",
        Smooth="yes, if nothing came after",
    )
    | {"Slots": "no: release"},
    "refund": _rates(
        "yes, what has not drained",
        FixedWindow="yes, until the window ends",
        SlidingWindow="yes, until its cell leaves",
        SlidingLog="yes, until its units leave",
    )
    | {"Slots": "no: release"},
    "settle": _rates(
        "yes, beyond the limit as debt",
        FixedWindow="yes, beyond the amount until the window ends",
        SlidingWindow="yes, beyond the amount until its cell leaves",
        SlidingLog="yes, beyond the amount for one period from settling",
    )
    | {"Slots": "no: release"},
    "reset": _rates() | {"Slots": "yes"},
    "set_limit": _rates(
        "yes, its units still count",
        TokenBucket="yes, what was used stays used",
        LeakyBucket="yes, keeps the queue",
        Smooth="yes, as setRate",
    )
    | {"Slots": "yes, leases stay"},
    "pause": _rates("yes, its clock stands", FixedWindow="yes, its windows go on") | {"Slots": "yes, leases stay"},
    "acquire": _NO | {"Slots": "yes"},
    "renew": _NO | {"Slots": "yes"},
    "release": _NO | {"Slots": "yes"},
}

CELLS = [(verb, algorithm) for verb in TABLE for algorithm in ALGORITHMS]


def supported(verb: str, algorithm: str) -> bool:
    return not TABLE[verb][algorithm].startswith("no")


def markdown() -> str:
    """The table as the docs have it."""
    rows = [("verb", *ALGORITHMS), ("---",) * (len(ALGORITHMS) + 1)]
    rows += [(f"`{verb}`", *(TABLE[verb][algorithm] for algorithm in ALGORITHMS)) for verb in TABLE]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
