"""States in words what processes do with a limit while the engine gives no answer, with the numbers.

Processes that are counted know their ranks, and their shares differ by a unit or are none at all. Processes whose
number was stated have equal shares among that number, however many they really are.
"""

from __future__ import annotations

from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.engines.layers.fallback.limit_share import equal_share, share

_BOUNDS = (
    "at most twice the limit in the window in which an outage begins or is partial, at most the limit and one "
    "share in any later one, and no second burst when the engine is back"
)


def describe_share(limit: Limit, nodes: int, stated_nodes: int | None) -> str:
    """Returns how so many processes share a limit. `stated_nodes`: the number that was stated; None: they are
    counted."""
    intro = "while the engine gives no answer, "
    if stated_nodes is None:
        return intro + _ranked_shares(limit, nodes)
    each_share = equal_share(limit, stated_nodes)
    if each_share is None:
        return intro + _refuses_all(limit, nodes)
    return (
        f"{intro}{_each_process(nodes)} goes on with {each_share}: {_total_admitted(limit, nodes, stated_nodes)}"
    )


def _ranked_shares(limit: Limit, nodes: int) -> str:
    first, last = share(limit, nodes, 0), share(limit, nodes, nodes - 1)
    if first is None:
        return _refuses_all(limit, nodes)
    if first == last:
        return f"{_each_process(nodes)} goes on with {first}: {_BOUNDS}"
    larger_shares = limit.units_at_once % nodes
    if last is None:
        subject = (
            f"the first {larger_shares} of {nodes} processes go"
            if larger_shares > 1
            else f"the first of {nodes} processes goes"
        )
        return f"{subject} on with {first}, and the others refuse every call: {_BOUNDS}"
    verb = "goes" if larger_shares == 1 else "go"
    return f"{larger_shares} of {nodes} processes {verb} on with {first}, and the others with {last}: {_BOUNDS}"


def _total_admitted(limit: Limit, nodes: int, stated_nodes: int) -> str:
    """Returns how much equal shares of so many processes admit together."""
    if nodes > stated_nodes:
        return (
            f"the engine was given nodes={stated_nodes}, so {nodes} processes together admit up to "
            f"{nodes / stated_nodes:.3g} times the limit, and in the window in which an outage begins or "
            "is partial, what the engine admitted besides"
        )
    capacity, sharers = limit.units_at_once, min(nodes, stated_nodes)
    if sharers <= capacity:
        return _BOUNDS
    if isinstance(limit, Slots):
        return f"all together up to {sharers} at a time instead of {capacity}, and what the engine gave before"
    if limit.is_calendar:
        rate = f"up to {sharers} in a {limit.per_unit()[1]} instead of {capacity}"
    else:
        rate = f"at most at the limit's rate, and up to {sharers} at once instead of {capacity}"
    return (
        f"all together {rate}; in the window in which an outage begins or is partial, the engine may have "
        "admitted the limit besides; no second burst when the engine is back"
    )


def _refuses_all(limit: Limit, nodes: int) -> str:
    return f"{_each_process(nodes)} refuses every call: {limit} is too slow to be divided"


def _each_process(nodes: int) -> str:
    return "the one process" if nodes == 1 else f"each of {nodes} processes"
