"""The meter of limits and rules that are not prefetched."""

from __future__ import annotations

from typing import Any

from headgate.algorithms.limit import Limit
from headgate.engines.charge_options import ChargeOptions


class ExactMeter:
    """A meter that is not prefetched, sync or async: its methods are those of the inner meter."""

    def __init__(self, meter: Any, options: ChargeOptions | None) -> None:
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options = options
        self.meter: Any = meter
        self.decide: Any = meter.decide
        self.refund: Any = meter.refund
        self.surcharge: Any = meter.surcharge
        self.retune: Any = meter.retune
        self.pause: Any = meter.pause
        self.reset: Any = meter.reset
