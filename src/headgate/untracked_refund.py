"""Refunds units to a key without a decision: makes a receipt from the count as it is now.

A refund belongs to a charge, and a charge's receipt is gone when its program is. An operator, or a gateway that
sends negative hits, has only the current count. So the receipt is made from a peek: it claims that the last
`units` of the current count were one charge, and that this charge is refunded. Each algorithm then gives back what
its law allows:

    token bucket, leaky bucket     water that has not drained yet
    fixed window                   units of the window that is open
    sliding window, sliding log    the newest units first, one request for each: a peek shows only the newest
    smooth                         the time for which the window is shut, not what idleness had saved

Laws (tests/test_untracked_refund.py): for every algorithm, after a refund of n units at most n more pass than
before, and never more than would pass on a key that was never used.
"""

from __future__ import annotations

from functools import partial

from headgate.algorithms import smooth
from headgate.algorithms.decision import AT_US, MARK, RESET_AFTER_US, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.engines.port import AsyncMeter, Meter
from headgate.errors import InvalidCharge
from headgate.flow import Flow


def give_back(meter: Meter | AsyncMeter, key: str, units: int) -> Flow[tuple[Outcome, Outcome]]:
    """Refunds up to so many units of the key; returns the outcomes of a peek before and after."""
    if isinstance(meter.limit, Slots):
        raise InvalidCharge(
            f'"{meter.limit}" is held, not taken: a slot comes back when it is released, or expires.'
        )
    before = after = yield partial(meter.decide, key, 0)
    in_one_refund = not isinstance(meter.limit, SlidingLog | SlidingWindow)
    for _ in range(1 if in_one_refund else units):
        receipt = _receipt(meter.limit, after, units if in_one_refund else 1)
        if receipt is None:
            break
        after = yield partial(meter.refund, key, units if in_one_refund else 1, receipt)
    return before, after


def _receipt(limit: Limit, outcome: Outcome, units: int) -> Receipt | None:
    """Returns a receipt for the last units of the count, as if they had been one charge; None if there are
    none."""
    at_us, reset_us, shut_us = outcome[AT_US], outcome[RESET_AFTER_US], outcome[RETRY_AFTER_US] or 0
    if isinstance(limit, SlidingLog):
        newest_us = at_us + reset_us - limit.period_us
        return Receipt(units, newest_us, 0, 0, newest_us) if reset_us > 0 else None
    if isinstance(limit, SlidingWindow):
        cell = (at_us + reset_us) // limit.cell_us - limit.cells
        return Receipt(units, cell * limit.cell_us, 0, 0, cell) if reset_us > 0 else None
    if isinstance(limit, Smooth):
        if limit.warmup_us and shut_us:
            # Half of a charge that began that much earlier: so that a warm-up prices the units itself.
            return Receipt(2 * units, at_us - shut_us, reset_us, 0, 2 * shut_us)
        price_us = min(shut_us, int(units * limit.interval_us))
        refunded_us, _ = smooth.unpack_mark(limit, outcome[MARK])
        mark = smooth.pack_mark(limit, price_us, refunded_us)
        return Receipt(units, at_us, reset_us, 0, mark) if shut_us else None
    return Receipt.from_outcome(outcome, units)
