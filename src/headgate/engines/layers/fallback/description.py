"""States in words what processes do with a limit while the engine gives no answer, with the numbers they go by.

Processes that are counted know their ranks, and their shares differ by a unit or are none at all. Processes whose
number was given have equal shares among that number, however many they really are.
"""

from __future__ import annotations

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.engines.layers.fallback.limit_share import equal_share, fresh, share

_LAW = (
    "at most twice the limit in the window in which an outage begins or is partial, at most the limit and one "
    "share in any later one, and no second burst when the engine is back"
)


def local_law(limit: Limit, nodes: int, given: int | None) -> str:
    """States how so many processes share a limit. `given`: the number they were given; None: they are counted."""
    gone = "while the engine gives no answer, "
    if given is None:
        return gone + _by_rank(limit, nodes)
    part = equal_share(limit, given)
    if part is None:
        return gone + _refused(limit, nodes)
    return f"{gone}{_each(nodes)} goes on with {part}: {_together(limit, nodes, given)}"


def _by_rank(limit: Limit, nodes: int) -> str:
    first, last = share(limit, nodes, 0), share(limit, nodes, nodes - 1)
    if first is None:
        return _refused(limit, nodes)
    if first == last:
        return f"{_each(nodes)} goes on with {first}: {_LAW}"
    more = fresh(limit) % nodes
    if last is None:
        few = f"the first {more} of {nodes} processes go" if more > 1 else f"the first of {nodes} processes goes"
        return f"{few} on with {first}, and the others refuse every call: {_LAW}"
    verb = "goes" if more == 1 else "go"
    return f"{more} of {nodes} processes {verb} on with {first}, and the others with {last}: {_LAW}"


def _together(limit: Limit, nodes: int, given: int) -> str:
    """States how much equal shares of so many processes admit together."""
    if nodes > given:
        return (
            f"the engine was given nodes={given}, so {nodes} processes together admit up to {nodes / given:.3g} "
            "times the limit, and in the window in which an outage begins or is partial, what the engine admitted "
            "besides"
        )
    whole, least = fresh(limit), min(nodes, given)
    if least <= whole:
        return _LAW
    if isinstance(limit, Slots):
        return f"all together up to {least} at a time instead of {whole}, and what the engine gave before"
    if isinstance(limit, FixedWindow) and limit.unit is not None:
        rate = f"up to {least} in a {limit.unit} instead of {whole}"
    else:
        rate = f"at most at the limit's rate, and up to {least} at once instead of {whole}"
    return (
        f"all together {rate}; in the window in which an outage begins or is partial, the engine may have "
        "admitted the limit besides; no second burst when the engine is back"
    )


def _refused(limit: Limit, nodes: int) -> str:
    return f"{_each(nodes)} refuses every call: {limit} is too slow to be divided"


def _each(nodes: int) -> str:
    return "the one process" if nodes == 1 else f"each of {nodes} processes"
