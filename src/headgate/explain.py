"""Explains limits in words, and what their engine guarantees: what does "6/minute queue 5" do to a caller?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import fill

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import DAY, HOUR, MINUTE, SECOND, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.engines.port import StackedEngine
from headgate.errors import InvalidRule

Description = Iterator[tuple[str, str]]

_REFUSED = "is not counted; it passes exactly retry_after later, if nothing else comes"
_WINDOW = "to the unit; reservations go into the following windows"


_LABEL_WIDTH = 13


def explain_limits(
    limits: Sequence[Limit], engine: StackedEngine | None = None, nodes: int = 1, width: int = 100
) -> str:
    """Returns a text that explains limits, and what the engine guarantees for each."""
    if type(nodes) is not int or nodes < 1:
        raise InvalidRule(f"nodes is a whole number, at least 1; not {nodes!r}.")
    lines = []
    for limit in limits:
        lines.append(limit.text)
        for label, text in (*explain(limit), *guarantees(engine, limit, nodes)):
            indent = " " * (_LABEL_WIDTH + 2)
            lines.append(fill(text, width, initial_indent=f"  {label:<{_LABEL_WIDTH}}", subsequent_indent=indent))
        lines.append("")
    if len(limits) > 1:
        lines.append("They are decided together: a call passes all of them, or is charged to none.\n")
    return "\n".join(lines)


def guarantees(engine: StackedEngine | None, limit: Limit, nodes: int) -> Description:
    """Yields what an engine and the layers around it guarantee, from the inside out."""
    if engine is not None:
        yield from guarantees(engine.inner, limit, nodes)
        yield from engine.guarantees(limit, nodes)


def explain(limit: Limit) -> Description:
    """Returns labels and texts that explain a limit, in the order in which people look for them."""
    match limit:
        case TokenBucket():
            return _token_bucket(limit)
        case LeakyBucket():
            return _leaky_bucket(limit)
        case FixedWindow():
            return _fixed_window(limit)
        case SlidingWindow():
            return _sliding_window(limit)
        case SlidingLog():
            return _sliding_log(limit)
        case Smooth():
            return _smooth(limit)
        case Slots():
            return _slots(limit)
    raise TypeError(f"A {type(limit).__name__} is of no kind that is known here.")


def _token_bucket(limit: TokenBucket) -> Description:
    fill_us = limit.capacity / limit.amount
    yield "algorithm", "token bucket (GCRA): a steady rate that forgives short bursts"
    yield (
        "passes",
        f"{limit.burst:,} at once from a full bucket, then one every {in_words(limit.period_us / limit.amount)}",
    )
    yield "at most", f"{limit.burst:,} in any span of time, and what comes back within it"
    if limit.amount == 1:
        yield "exact", f"to the microsecond: one unit is {limit.period_us:,} us"
    else:
        yield (
            "exact",
            f"nothing is rounded: {limit.amount:,} units are {limit.period_us:,} us, the rest is remembered",
        )
    yield "idle keys", f"are forgotten when their bucket is full again: after {in_words(fill_us)} at most"
    yield "refused", f"{_REFUSED}; a cost above {limit.burst:,} never passes"


def _leaky_bucket(limit: LeakyBucket) -> Description:
    unit_us = 1000 * SECOND / limit.rate
    yield "algorithm", "leaky bucket, nginx's limit_req: an even pace, and a queue for those who come too early"
    if limit.delay is None:
        yield (
            "passes",
            f"{limit.burst + 1:,} at once (the queue only counts), then one every {in_words(unit_us)}",
        )
    else:
        at_once = limit.delay + 1
        wait = f"up to {limit.burst - limit.delay:,} more wait in the queue, {in_words(unit_us)} each"
        yield "passes", f"{at_once:,} at once; {wait if limit.burst > limit.delay else 'nobody waits'}"
    yield "at most", f"{limit.burst + 1:,} in any span of time, and what drains within it"
    yield "exact", f"to nginx's millisecond; as nginx rounds it, {limit.rate / 1000:g} a second"
    yield (
        "idle keys",
        f"are forgotten when they have drained: after {in_words((limit.burst + 1) * unit_us)} at most",
    )
    yield "delay", "an allowed call carries the delay to serve before going on"
    yield "refused", f"{_REFUSED}; a cost above {limit.burst + 1:,} never passes"


def _fixed_window(limit: FixedWindow) -> Description:
    window = (
        f"{limit.unit} in {limit.zone}"
        if limit.unit
        else f"window of {in_words(limit.period_us)}, cut on the epoch"
    )
    yield "algorithm", "fixed window: a count that starts again at every edge"
    yield "passes", f"{limit.amount:,} in each {window}"
    yield (
        "at most",
        f"{2 * limit.amount:,} around an edge, half before it and half after; sliding and log avoid that",
    )
    yield "exact", _WINDOW
    yield "idle keys", "are forgotten when their window ends"
    yield "refused", f"{_REFUSED}: at the next edge; a cost above {limit.amount:,} never passes"


def _sliding_window(limit: SlidingWindow) -> Description:
    period_us = limit.cell_us * limit.cells
    yield (
        "algorithm",
        f"sliding window of {limit.cells} cells, {in_words(limit.cell_us)} each (Sentinel's LeapArray)",
    )
    yield "passes", f"{limit.amount:,} in the last {_each(period_us)}, counted in whole cells"
    yield "at most", f"{limit.amount:,} in any run of {limit.cells} cells; nothing doubles at an edge"
    yield (
        "exact",
        f"to the cell: a unit comes back {in_words(period_us - limit.cell_us)} to "
        f"{in_words(period_us)} after it passed",
    )
    yield "idle keys", f"are forgotten after {in_words(period_us)} at most"
    yield "refused", f"{_REFUSED}; a cost above {limit.amount:,} never passes"


def _sliding_log(limit: SlidingLog) -> Description:
    yield "algorithm", "sliding log: every unit is remembered until it is a period old"
    yield "passes", f"{limit.amount:,} in the last {_each(limit.period_us)}"
    yield "at most", f"{limit.amount:,} in any {_each(limit.period_us)}, whenever it starts"
    yield "exact", "to the microsecond"
    yield "memory", f"7 bytes a unit in Redis: {limit.amount * 7 + 39:,} bytes when full"
    yield "idle keys", f"are forgotten {in_words(limit.period_us)} after the last unit"
    yield "refused", f"{_REFUSED}; a cost above {limit.amount:,} never passes"


def _smooth(limit: Smooth) -> Description:
    rate, warmup_us, shape = limit.args
    yield "algorithm", "smooth pacing: Guava's RateLimiter"
    yield (
        "passes",
        f"one every {in_words(limit.interval_us)}; the next one waits for what the last one took",
    )
    if warmup_us:
        yield (
            "cold",
            f"starts {shape:g} times slower, and is at full rate after {in_words(warmup_us)} of steady demand",
        )
        yield (
            "idle keys",
            f"are forgotten when they have gone cold: {in_words(warmup_us)} after they were paid for",
        )
    else:
        saved_us = shape * SECOND
        yield (
            "burst",
            f"saves up to {in_words(saved_us)} of idle time, {limit.store:g} units; a new key has saved nothing",
        )
        yield "idle keys", f"are forgotten after {in_words(max(DAY, saved_us))}, with what they had saved"
    yield "exact", f"as Guava is: doubles, prices rounded down to whole microseconds; {rate:g} a second"
    yield "refused", f"{_REFUSED}; take asks without waiting, wait and reserve take a place"


def _slots(limit: Slots) -> Description:
    yield "algorithm", "slots: how many may be at it at once, however long it takes"
    yield "passes", f"{limit.amount:,} holders at a time, with acquire and release; waiters are served in order"
    yield (
        "crash",
        f"a holder that is not heard of for {in_words(limit.ttl_us)} loses its slot; renew keeps it",
    )
    yield "exact", "every lease has a fencing number that never repeats"
    yield (
        "idle keys",
        f"are forgotten when the last lease has ended: {in_words(limit.ttl_us)} after its last renewal at most",
    )
    yield "refused", "leaves no trace; retry_after is when a slot comes free at the latest"


def _each(us: float) -> str:
    """Returns a length of time as it follows "in any": minute, not 1 minute."""
    return re.sub(r"^1 (?=[dhm]\w\w)", "", in_words(us))


def in_words(us: float) -> str:
    """Returns a length of time for people: 90 s, 10 ms, 1.43 us."""
    for length, unit in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")):
        if us >= 2 * length or us == length:
            count = round(us / length, 2)
            return f"{count:g} {unit}{'' if count == 1 else 's'}"
    for length, unit in ((SECOND, "s"), (1000, "ms")):
        if us >= length:
            return f"{us / length:.4g} {unit}"
    return f"{us:.3g} us"
