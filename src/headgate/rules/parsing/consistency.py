"""What the fields of a rule must be together, and the rules of a book.

missing     is stated where something that the rule counts by can be missing
slots       are held, not charged: alone in a limit, and without cost, candidate, overrides, lockout, prefetch and
            quota_mode
prefetch    fetches units ahead: not where nothing is shared, nor where the script must see every call, nor
            beside a candidate, which asks the server at every call
overrides   lie on the server: not where it is not asked
nodes       is the number of parts of a split
attributes  are those that the book says the caller supplies, if it says so
replaces    names rules, and leads back to none
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headgate.algorithms.slots import Slots
from headgate.rules.attributes import PREFIXES, WELL_KNOWN
from headgate.rules.parsing import fields
from headgate.rules.parsing.document_tree import Fault, Position, quote
from headgate.rules.parsing.impossible_conditions import always_captured, excludes_all
from headgate.rules.parsing.parse_rule import Field
from headgate.rules.rule import Choice, Limits

Fields = dict[str, Field]
ReplacedRules = dict[str, tuple[tuple[str, Position], ...]]

_ALWAYS_THERE = ("address", "server", "method", "path", "host")
_CHARGED = ("cost", "candidate", "overrides", "lockout", "prefetch", "quota_mode")


def check_rule(found: Fields, supplied: Collection[str] | None) -> Iterator[Fault]:
    """Everything that does not go together in a rule, each fault by itself."""
    when = found["when"].value if "when" in found else None
    yield from _unknown_attributes(found, supplied, when.captures if when else frozenset())
    if "except" in found and excludes_all(when, found["except"].value):
        yield Fault(found["except"].place, "The rule never applies: what is excepted is all that it is for.")
    yield from _missing(found, always_captured(when))
    where = found["where"].value if "where" in found else "cluster"
    if "nodes" in found and where != "split" and found["nodes"].own:
        yield Fault(
            found["nodes"].place, "nodes says into how many parts a limit is split.", "Write where: split as well."
        )
    yield from _prefetch(found, where)
    if where != "cluster" and _says(found, "overrides"):
        yield Fault(
            found["overrides"].place,
            f"overrides have no use with where: {where}: they lie on the server, and it is not asked.",
            "Write overrides: false.",
        )
    yield from _slots(found)


def _unknown_attributes(
    found: Fields, supplied: Collection[str] | None, captured: Collection[str]
) -> Iterator[Fault]:
    if supplied is None:
        return
    known = {*WELL_KNOWN, *supplied, *captured}
    for field in found.values():
        for name, place in field.uses:
            if name not in known and not name.startswith(PREFIXES):
                hint = fields.did_you_mean(name, sorted(known))
                yield Fault(place, f"{quote(name)} is none of the attributes that the book lists.", hint)


def _missing(found: Fields, captured: Collection[str]) -> Iterator[Fault]:
    if "missing" in found:
        return
    counted = [(dimension.name, found["key"].place) for dimension in found["key"].value] if "key" in found else []
    if "cost" in found:
        cost = found["cost"].value
        said = (cost.otherwise, *(value for _, value in cost.cases))
        counted += [(value, found["cost"].place) for value in said if isinstance(value, str)]
    for name, place in counted:
        if name not in _ALWAYS_THERE and name not in captured:
            yield Fault(
                place,
                f"{name} can be missing, and the rule does not say what then.",
                "Write missing: skip (the rule does not apply), deny (it refuses) or one (counted together).",
            )
            return


def _prefetch(found: Fields, where: str) -> Iterator[Fault]:
    if not _says(found, "prefetch"):
        return
    place = found["prefetch"].place
    if where != "cluster":
        yield Fault(
            place,
            f"prefetch has no use with where: {where}: there is no server to save calls to.",
            "Write prefetch: exact.",
        )
    for name in ("overrides", "lockout"):
        if _says(found, name):
            yield Fault(
                place,
                f"prefetch cannot be with {name}: prefetched units are given out unseen.",
                "Write prefetch: exact.",
            )
    if "candidate" in found:
        yield Fault(
            place,
            "prefetch has no use with a candidate: that asks the server at every call.",
            "Write prefetch: exact, or leave the candidate out.",
        )


def _slots(found: Fields) -> Iterator[Fault]:
    limit = found["limit"]
    if _holds_slots(limit):
        if any(len(limits) > 1 or (limits and not isinstance(limits[0], Slots)) for limits in _values(limit)):
            yield Fault(
                limit.place, "Slots stand alone: not beside a limit of another kind.", "Make it two rules."
            )
        for name in _CHARGED:
            if _says(found, name):
                place, hint = found[name].place, _OFF[name]
                yield Fault(place, f"Slots are held, not charged: {name} has no meaning for them.", hint)
    if "candidate" in found and _holds_slots(found["candidate"]):
        place = found["candidate"].place
        yield Fault(place, "Slots cannot be a candidate: nothing would be held.", "Make it a rule in shadow.")


_OFF = {
    "cost": "Leave it out; in defaults, give it to the other rules instead.",
    "candidate": "Leave it out.",
    "overrides": "Leave it out, or write overrides: false.",
    "lockout": "Leave it out, or write lockout: off.",
    "prefetch": "Leave it out, or write prefetch: exact.",
    "quota_mode": "Leave it out, or write quota_mode: false.",
}


def _holds_slots(field: Field) -> bool:
    return any(isinstance(limit, Slots) for limits in _values(field) for limit in limits)


def _values(field: Field) -> list[Limits]:
    choice: Choice[Limits] = field.value
    return [choice.otherwise, *(value for _, value in choice.cases)]


def _says(found: Fields, name: str) -> bool:
    return name in found and found[name].value not in (None, False)


def check_replaces(replaced: ReplacedRules, known: Collection[str]) -> Iterator[tuple[str, Fault]]:
    """For each rule whose `replaces` cannot be, why."""
    for rule, names in replaced.items():
        for name, place in names:
            if name not in known:
                yield rule, Fault(place, f"No rule is called {quote(name)}.", fields.did_you_mean(name, known))
    for circle in _circles({rule: [name for name, _ in names] for rule, names in replaced.items()}):
        places = [place for name, place in replaced[circle[0]] if name == circle[1]]
        yield circle[0], Fault(places[0], f"Rules replace each other in a circle: {' -> '.join(circle)}.")


def _circles(graph: dict[str, list[str]]) -> Iterator[list[str]]:
    """Every circle that a walk from the first rule on comes upon; without recursion, for books are long."""
    done: set[str] = set()
    for start in graph:
        path: dict[str, None] = {}
        ways = [iter([start])]
        while ways:
            name = next(ways[-1], None)
            if name is None:
                ways.pop()
                if path:
                    done.add(path.popitem()[0])
            elif name in path:
                steps = list(path)
                yield [*steps[steps.index(name) :], name]
            elif name in graph and name not in done:
                path[name] = None
                ways.append(iter(graph[name]))
