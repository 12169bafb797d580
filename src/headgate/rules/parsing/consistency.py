"""Checks that the fields of a rule, and the rules of a book, fit together.

missing     must be set where an attribute in the key or cost can be missing
slots       are held, not charged: alone in a limit, and without cost, candidate, overrides, lockout, prefetch and
            quota_mode
adaptive    limits are decided in each process by how calls went: only what matches calls, mode and refuse apply
prefetch    fetches units ahead: not where nothing is shared, nor where the script must see every call, nor
            together with a candidate, which asks the server at every call
overrides   are stored on the server: not where the server is not asked
pausable    likewise; and not beside overrides
nodes       is the number of parts of a split
attributes  must be listed in the book, if it has such a list
replaces    names existing rules, without cycles
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.algorithms.slots import Slots
from headgate.rules.attributes import PREFIXES, ROUTE_PREFIX, STANDARD_ATTRIBUTES
from headgate.rules.parsing import fields
from headgate.rules.parsing.document_tree import Fault, Position, quote
from headgate.rules.parsing.impossible_conditions import always_captured, excludes_all
from headgate.rules.parsing.parse_rule import RuleField
from headgate.rules.rule import Choice, Limits

Fields = dict[str, RuleField]
ReplacedRules = dict[str, tuple[tuple[str, Position], ...]]

_ALWAYS_PRESENT = ("address", "server", "method", "path", "host")
_NOT_FOR_SLOTS = ("cost", "candidate", "overrides", "lockout", "prefetch", "quota_mode")
_NOT_FOR_ADAPTIVE = (*_NOT_FOR_SLOTS, "nodes", "fallback", "deadline", "initial_share")


def check_rule(rule_fields: Fields, supplied: Collection[str] | None) -> Iterator[Fault]:
    """Yields a fault for everything that does not fit together in a rule."""
    when = rule_fields["when"].value if "when" in rule_fields else None
    yield from _unknown_attributes(rule_fields, supplied, when.captures if when else frozenset())
    if "except" in rule_fields and excludes_all(when, rule_fields["except"].value):
        yield Fault(
            rule_fields["except"].position, "The rule never applies: its except covers all calls of its when."
        )
    yield from _missing(rule_fields, always_captured(when))
    where = rule_fields["where"].value if "where" in rule_fields else "cluster"
    if "nodes" in rule_fields and where != "split" and rule_fields["nodes"].explicit:
        yield Fault(
            rule_fields["nodes"].position,
            "nodes has an effect only on a split limit.",
            "Write where: split as well.",
        )
    yield from _prefetch(rule_fields, where)
    for name, verb in (("overrides", "have"), ("pausable", "has")):
        if where != "cluster" and _is_set(rule_fields, name):
            stored = "they are" if name == "overrides" else "pauses are"
            yield Fault(
                rule_fields[name].position,
                f"{name} {verb} no effect with where: {where}: {stored} stored on the server, which such a "
                "rule does not ask.",
                f"Write {name}: false.",
            )
    if _is_set(rule_fields, "pausable") and _is_set(rule_fields, "overrides"):
        yield Fault(
            rule_fields["pausable"].position,
            "pausable cannot be combined with overrides: a key has a limit of its own, or a pause.",
            "Write overrides: false, or pausable: false.",
        )
    yield from _slots(rule_fields)
    yield from _adaptive(rule_fields)


def _unknown_attributes(
    rule_fields: Fields, supplied: Collection[str] | None, captured: Collection[str]
) -> Iterator[Fault]:
    if supplied is None:
        return
    valid = {*STANDARD_ATTRIBUTES, *supplied, *captured}
    for field in rule_fields.values():
        for name, position in field.uses:
            if name not in valid and not name.startswith((*PREFIXES, ROUTE_PREFIX)):
                hint = fields.did_you_mean(name, sorted(valid))
                yield Fault(position, f"{quote(name)} is not one of the attributes that the rulebook lists.", hint)


def _missing(rule_fields: Fields, captured: Collection[str]) -> Iterator[Fault]:
    if "missing" in rule_fields:
        return
    required = (
        [(dimension.name, rule_fields["key"].position) for dimension in rule_fields["key"].value]
        if "key" in rule_fields
        else []
    )
    if "cost" in rule_fields:
        cost = rule_fields["cost"].value
        costs = (cost.otherwise, *(value for _, value in cost.cases))
        required += [(value, rule_fields["cost"].position) for value in costs if isinstance(value, str)]
    for name, position in required:
        if name not in _ALWAYS_PRESENT and name not in captured:
            yield Fault(
                position,
                f"{name} can be missing, and the rule does not say what happens then.",
                "Write missing: skip (the rule does not apply), deny (it refuses) or one (counted together).",
            )
            return


def _prefetch(rule_fields: Fields, where: str) -> Iterator[Fault]:
    if not _is_set(rule_fields, "prefetch"):
        return
    position = rule_fields["prefetch"].position
    if where != "cluster":
        yield Fault(
            position,
            f"prefetch has no effect with where: {where}: such a rule asks no server.",
            "Write prefetch: exact.",
        )
    for name in ("overrides", "lockout", "pausable"):
        if _is_set(rule_fields, name):
            yield Fault(
                position,
                f"prefetch cannot be combined with {name}: the server must see every call.",
                "Write prefetch: exact.",
            )
    if "candidate" in rule_fields:
        yield Fault(
            position,
            "prefetch has no effect with a candidate, which asks the server for every call.",
            "Write prefetch: exact, or leave the candidate out.",
        )


def _slots(rule_fields: Fields) -> Iterator[Fault]:
    limit = rule_fields["limit"]
    if _holds_slots(limit):
        if any(len(limits) > 1 or (limits and not isinstance(limits[0], Slots)) for limits in _values(limit)):
            yield Fault(
                limit.position, "Slots cannot be combined with a limit of another kind.", "Make it two rules."
            )
        for name in _NOT_FOR_SLOTS:
            if _is_set(rule_fields, name):
                position, hint = rule_fields[name].position, _REMOVAL_HINTS[name]
                yield Fault(position, f"Slots are held, not charged: {name} has no meaning for them.", hint)
    if "candidate" in rule_fields and _holds_slots(rule_fields["candidate"]):
        position = rule_fields["candidate"].position
        yield Fault(position, "Slots cannot be a candidate: nothing would be held.", "Make it a rule in shadow.")


def _adaptive(rule_fields: Fields) -> Iterator[Fault]:
    if "candidate" in rule_fields and holds_adaptive(rule_fields["candidate"]):
        position = rule_fields["candidate"].position
        hint = "Make it a rule in shadow."
        yield Fault(
            position, "An adaptive limit cannot be a candidate: no call would be in flight under it.", hint
        )
    if not holds_adaptive(rule_fields["limit"]):
        return
    for name in _NOT_FOR_ADAPTIVE:
        # Fields that come from the defaults alone, and are not needed, are left out.
        if _is_set(rule_fields, name) and (name in _NOT_FOR_SLOTS or rule_fields[name].explicit):
            sentence = (
                f"An adaptive limit is decided in this process by how calls went: {name} has no meaning for it."
            )
            yield Fault(rule_fields[name].position, sentence, _REMOVAL_HINTS.get(name, "Leave it out."))
    where = rule_fields.get("where")
    if where is not None and where.explicit and where.value == "split":
        yield Fault(
            where.position,
            "An adaptive limit is not split: each process finds its own, or all agree on one.",
            "Write where: node or where: cluster.",
        )
    if where is not None and where.explicit and where.value == "cluster" and "key" in rule_fields:
        yield Fault(
            where.position,
            "Processes agree on an adaptive limit for all calls together, and this one has a key.",
            "Write where: node, or leave the key out.",
        )


def holds_adaptive(field: RuleField) -> bool:
    """Returns whether a field has an adaptive limit."""
    return any(isinstance(limit, AdaptiveLimit) for limits in _values(field) for limit in limits)


_REMOVAL_HINTS = {
    "cost": "Leave it out; in defaults, give it to the other rules instead.",
    "candidate": "Leave it out.",
    "overrides": "Leave it out, or write overrides: false.",
    "lockout": "Leave it out, or write lockout: off.",
    "prefetch": "Leave it out, or write prefetch: exact.",
    "quota_mode": "Leave it out, or write quota_mode: false.",
}


def _holds_slots(field: RuleField) -> bool:
    return any(isinstance(limit, Slots) for limits in _values(field) for limit in limits)


def _values(field: RuleField) -> list[Limits]:
    choice: Choice[Limits] = field.value
    return [choice.otherwise, *(value for _, value in choice.cases)]


def _is_set(rule_fields: Fields, name: str) -> bool:
    return name in rule_fields and rule_fields[name].value not in (None, False)


def check_replaces(replaced: ReplacedRules, rule_names: Collection[str]) -> Iterator[tuple[str, Fault]]:
    """Yields each rule whose `replaces` is invalid, with the fault."""
    for rule, names in replaced.items():
        for name, position in names:
            if name not in rule_names:
                yield (
                    rule,
                    Fault(position, f"No rule is called {quote(name)}.", fields.did_you_mean(name, rule_names)),
                )
    for cycle in _cycles({rule: [name for name, _ in names] for rule, names in replaced.items()}):
        positions = [position for name, position in replaced[cycle[0]] if name == cycle[1]]
        yield cycle[0], Fault(positions[0], f"Rules replace each other in a circle: {' -> '.join(cycle)}.")


def _cycles(graph: dict[str, list[str]]) -> Iterator[list[str]]:
    """Yields the cycles of a graph; without recursion, because books may be long."""
    finished: set[str] = set()
    for start in graph:
        path: dict[str, None] = {}
        pending = [iter([start])]
        while pending:
            name = next(pending[-1], None)
            if name is None:
                pending.pop()
                if path:
                    finished.add(path.popitem()[0])
            elif name in path:
                names = list(path)
                yield [*names[names.index(name) :], name]
            elif name in graph and name not in finished:
                path[name] = None
                pending.append(iter(graph[name]))
