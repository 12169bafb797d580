"""Refunds units to a key without a decision: makes a receipt from the count as it is now.

A refund belongs to a charge, and a charge's receipt is gone when its program is. An operator, or a gateway that
sends negative hits, has only the current count. So the receipt is made from a peek: it claims that the last
`units` of the current count were one charge, and that this charge is refunded. Each algorithm then gives back what
its law allows:

    token bucket, leaky bucket     water that has not drained yet
    fixed window                   units of the window that is open
    sliding window, sliding log    the newest units first, one request for each: a peek shows only the newest
    smooth                         the time for which the window is shut, not what idleness had saved

Laws (tests/test_refund_without_decision.py): for every algorithm, after a refund of n units at most n more pass
than before, and never more than would pass on a key that was never used.
"""

from __future__ import annotations

from functools import partial

from headgate.algorithms.decision import Outcome
from headgate.algorithms.slots import Slots
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
    times, part = (units, 1) if meter.limit.refunds_newest_first else (1, units)
    for _ in range(times):
        receipt = meter.limit.receipt_of_newest(after, part)
        if receipt is None:
            break
        after = yield partial(meter.refund, key, part, receipt)
    return before, after
