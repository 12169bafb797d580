"""Bounds how long units may be held, and how many, by an engine's default or a rule's options; states the cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headgate.algorithms.limit import Limit, check_whole
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.prefetch.prefetched_units import max_prefetch

HOLD_US = 100_000


class PrefetchHold(NamedTuple):
    """Bounds on the time that units are held, and their number; by default a tenth of what the limit holds."""

    us: int
    units: int | None

    @classmethod
    def create(cls, us: int, units: int | None) -> PrefetchHold:
        """Returns a Hold, or raises InvalidRule."""
        check_whole("The time that prefetched units are held, in microseconds,", us)
        return cls(us, None if units is None else check_whole("The number of prefetched units", units))


def hold_for(limit: Limit, options: ChargeOptions | None, default: PrefetchHold | None) -> PrefetchHold | None:
    """Returns how units of this limit are held; None if they are not."""
    exact = not max_prefetch(limit) or (options is not None and not options.without_rule_state)
    return None if exact else _chosen_hold(options, default)


def _chosen_hold(options: ChargeOptions | None, default: PrefetchHold | None) -> PrefetchHold | None:
    if options is None:
        return default
    return None if options.prefetch is None else PrefetchHold.create(*options.prefetch)


def prefetch_guarantees(
    limit: Limit, nodes: int, options: ChargeOptions | None, default: PrefetchHold | None
) -> Iterator[tuple[str, str]]:
    """Yields what an engine with this default guarantees about a limit, for `explain`."""
    hold = _chosen_hold(options, default)
    if hold is None:
        return
    if options is not None and not options.without_rule_state:
        yield "prefetch", f"{limit} is never prefetched, because its rule has a lockout or overrides."
    else:
        yield "prefetch", guarantee(limit, hold_us=hold.us, units=hold.units, nodes=nodes)


def guarantee(limit: Limit, *, hold_us: int = HOLD_US, units: int | None = None, nodes: int) -> str:
    """Returns a sentence, with its numbers, on what prefetching costs at most."""
    max_units = max_prefetch(limit, units)
    if not max_units:
        return f"{limit} is never prefetched: every call is decided by the engine itself."
    total = check_whole("The number of processes", nodes) * max_units
    admitted = "not one unit more is" if limit.has_edges else f"at most {total} units more are"
    span = "in any window" if limit.has_edges else "over any span"
    return (
        f"{limit}, prefetched by {nodes} processes, at most {max_units} units each: {span} {admitted} admitted "
        f"than the limit alone admits, and at most {total} units are kept from others, "
        f"for at most {hold_us / 1000:g} ms."
    )
