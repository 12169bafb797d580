"""Reads a case for `headgate simulate`: a server, a load, and the limiters to compare.

    name: staged
    seeds: [1, 2, 3, 4, 5]
    server: {threads: 12, slices: 100}      or {delay: 100ms, knee_start: 10, knee_exp: 1.1, ...}
    timeout: 5s
    settle: 5s                              the first seconds of each stage, which are not measured
    load:
      - {for: 20s, rate: 100, work: 50ms}
      - {for: 40s, rate: 100, work: 150ms, arrivals: even, priorities: {high: 0.5, low: 0.5}, threads: 6}
    limiters: [none, {bulkhead: 40}, {rate: 150/s}, breaker, aimd, {adaptive: {floor: 2, queue: 50ms}}]

In place of the load, `closed: {requests: 500, interval: 25ms}` is one client that sends as fast as its limit
allows. Problems are reported all together, each with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from headgate.adaptive.simulation.case import (
    NO_PRIORITIES,
    ClosedLoad,
    LimiterSettings,
    SimulationCase,
    Stage,
    ThreadsSettings,
)
from headgate.adaptive.simulation.limiters import ALGORITHMS
from headgate.algorithms.limit import SECOND
from headgate.errors import InvalidRule, InvalidRulebook
from headgate.limit_syntax import parse
from headgate.rules.parsing import fields, read_yaml
from headgate.rules.parsing.document_tree import (
    MAX_BYTES,
    Fault,
    ListNode,
    MappingNode,
    Node,
    Position,
    ScalarNode,
    decode,
    describe_node,
)
from headgate.rules.parsing.problems import Problems, at_node, read_all, read_entries

MAX_CALLS = 50_000_000  # of all stages, seeds and limiters

_CASE_FIELDS = ("name", "seeds", "server", "timeout", "settle", "arrivals", "load", "closed", "limiters")
_STAGE_FIELDS = ("for", "rate", "work", "variation", "arrivals", "priorities", "threads")
_DELAY_FIELDS = ("delay", "scale", "knee_start", "knee_exp", "jitter", "defer_above", "drop_above", "defer_rate")
_PLAIN = ("none", "breaker")
_ARRIVALS = ("poisson", "even")
_decimal_pattern = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


def read_case(path: Path) -> SimulationCase:
    """Reads the case in a YAML file; raises InvalidRulebook with every problem and its line."""
    problems = Problems()
    with problems.under(""):
        case = _case(read_yaml.read(decode(_file_bytes(path))), path.stem)
        if offered_calls(case) > MAX_CALLS:
            raise Fault(
                Position(1), f"The case has more than {MAX_CALLS:,} calls.", "Shorten it, or use fewer seeds."
            )
        return case
    raise problems.error(str(path))


def _file_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRulebook(
            [(None, f"The case cannot be read: {error.strerror or error}.")], str(path)
        ) from error
    if not data.strip():
        raise Fault(Position(1), "The case is empty.", "It needs a server, a load and limiters.")
    return data


def _case(root: Node, name: str) -> SimulationCase:
    table = fields.table(root, "A case", _CASE_FIELDS, ("server", "limiters"))
    readers: dict[str, Callable[[Node, str], Any]] = {
        "name": fields.text,
        "seeds": _seeds,
        "server": _server,
        "timeout": _seconds,
        "settle": _seconds,
        "arrivals": lambda node, field: fields.word(node, field, _ARRIVALS),
        "load": _load,
        "closed": _closed,
        "limiters": _limiters,
    }
    parts: list[Callable[[MappingNode], dict[str, Any]]] = [
        _check_load,
        lambda mapping: read_entries(mapping, readers),
    ]
    values = read_all(lambda read: read(table), parts)[1]
    server = values["server"]
    load = values["closed"] if "closed" in values else values["load"]
    if isinstance(load, ClosedLoad):
        if load.work is None and isinstance(server, ThreadsSettings):
            _, node = table.entries["closed" if "closed" in values else "load"]
            raise Fault(
                node.position, "A closed load lacks the field work.", "Write the time of one call: work: 50ms"
            )
    else:
        even = values.get("arrivals") == "even"
        stages = [values for _, values in load]
        classes = _classes(stages)
        load = tuple(read_all(lambda stage: _complete(stage[0], stage[1], server, even, classes), load))
    return SimulationCase(
        name=values.get("name", name),
        seeds=values.get("seeds", (1, 2, 3, 4, 5)),
        server=server,
        load=load,
        limiters=values["limiters"],
        timeout=values.get("timeout"),
        settle=values.get("settle", 0.0),
    )


def _check_load(table: MappingNode) -> dict[str, Any]:
    """Raises a Fault unless the case has one load; returns no values."""
    if "load" in table.entries and "closed" in table.entries:
        raise Fault(
            table.position, "A case has either a load or a closed one, not both.", "Leave one of them out."
        )
    if "load" not in table.entries and "closed" not in table.entries:
        raise Fault(
            table.position,
            "A case lacks the field load.",
            "Write load: and a list of stages, or closed: {requests: 500, interval: 25ms}",
        )
    return {}


def _load(node: Node, field: str) -> ClosedLoad | list[tuple[Node, dict[str, Any]]]:
    """Reads the values of each stage; a closed load may be written in place of the stages."""
    if isinstance(node, MappingNode) and "closed" in node.entries:
        return _closed(fields.table(node, field, ("closed",)).entries["closed"][1], "closed")
    if not isinstance(node, ListNode) or not node.nodes:
        raise Fault(
            node.position, f"{field} is a list of stages, not {describe_node(node)}.", "Begin each with a dash."
        )
    return list(zip(node.nodes, read_all(_stage, node.nodes), strict=True))


def _stage(node: Node) -> dict[str, Any]:
    table = fields.table(node, "A stage", _STAGE_FIELDS, ("for", "rate"))
    return read_entries(
        table,
        {
            "for": _seconds,
            "rate": _rate,
            "work": _seconds,
            "arrivals": lambda inner, field: fields.word(inner, field, _ARRIVALS),
            "priorities": _priorities,
            "threads": lambda inner, field: fields.whole_number(inner, field, 0, 10_000),
            "variation": lambda inner, field: _decimal(inner, field, 0.0, 10.0),
        },
    )


def _classes(stages: list[dict[str, Any]]) -> list[str]:
    """Returns the classes of all stages, the most important first: those of the first stage that has the most, and
    then those of other stages."""
    by_stage = [list(values["priorities"]) for values in stages if "priorities" in values]
    by_stage.sort(key=len, reverse=True)
    return list(dict.fromkeys(name for names in by_stage for name in names))


def _complete(
    node: Node,
    values: dict[str, Any],
    server: ThreadsSettings | Mapping[str, float],
    even: bool,
    classes: list[str],
) -> Stage:
    """Returns a stage with what it has of the server and of the whole case."""
    if "priorities" in values:
        shares: dict[str, float] = values["priorities"]
        ordered = [name for name in classes if name in shares]
        if list(shares) != ordered:
            raise Fault(
                node.position,
                f"The order of priorities is {', '.join(classes)} in another stage, and not {', '.join(shares)}.",
                "Write the most important class first in every stage.",
            )
        values["priorities"] = {name: shares.get(name, 0.0) for name in classes}
    if not isinstance(server, ThreadsSettings):
        values.setdefault("work", server["delay"])
        if "threads" in values:
            raise Fault(node.position, "A server with a delay has no threads to change.", "Leave threads out.")
        if "variation" in values:
            raise Fault(node.position, "A server with a delay does not look at the work.", "Give it jitter.")
    if "work" not in values:
        raise Fault(node.position, "A stage lacks the field work.", "Write the time of one call: work: 50ms")
    return Stage(
        duration=values["for"],
        rate=values["rate"],
        work=values["work"],
        even=values["arrivals"] == "even" if "arrivals" in values else even,
        priorities=values.get("priorities", NO_PRIORITIES),
        threads=values.get("threads"),
        variation=values.get("variation", 0.0),
    )


def _priorities(node: Node, field: str) -> dict[str, float]:
    if not isinstance(node, MappingNode) or not node.entries:
        raise Fault(
            node.position, f"{field} is a mapping, not {describe_node(node)}.", "Write {high: 0.5, low: 0.5}."
        )
    shares = read_entries(node, dict.fromkeys(node.entries, lambda inner, name: _decimal(inner, name, 0.0)))
    if not sum(shares.values()):
        raise Fault(node.position, "The shares of the priorities are all 0.", "Give at least one class a share.")
    return shares


def _closed(node: Node, field: str) -> ClosedLoad:
    table = fields.table(node, field, ("requests", "interval", "work"), ("requests",))
    values = read_entries(
        table,
        {
            "requests": lambda inner, name: fields.whole_number(inner, name, 1, 10_000_000),
            "interval": lambda inner, name: 0.0 if _is_zero(inner) else _seconds(inner, name),
            "work": _seconds,
        },
    )
    return ClosedLoad(values["requests"], values.get("interval", 0.0), values.get("work"))


def _server(node: Node, field: str) -> ThreadsSettings | dict[str, float]:
    if isinstance(node, MappingNode) and "threads" in node.entries:
        table = fields.table(node, "A server with threads", ("threads", "slices"))
        values = read_entries(
            table,
            dict.fromkeys(("threads", "slices"), lambda inner, name: fields.whole_number(inner, name, 1, 10_000)),
        )
        return ThreadsSettings(**values)
    table = fields.table(node, "server", ("threads", "slices", *_DELAY_FIELDS))
    table = fields.table(table, "A server with a delay", _DELAY_FIELDS, ("delay",))
    readers: dict[str, Callable[[Node, str], Any]] = dict.fromkeys(_DELAY_FIELDS, _decimal)
    readers |= {"delay": _seconds, "defer_rate": _rate}
    return read_entries(table, readers)


def _limiters(node: Node, field: str) -> tuple[LimiterSettings, ...]:
    if not isinstance(node, ListNode) or not node.nodes:
        raise Fault(
            node.position,
            f"{field} is a list of at least one, not {describe_node(node)}.",
            "Write [none, adaptive].",
        )
    return tuple(read_all(_limiter, node.nodes))


def _limiter(node: Node) -> LimiterSettings:
    kinds = (*_PLAIN, "bulkhead", "rate", *ALGORITHMS)
    if isinstance(node, ScalarNode):
        kind = fields.word(node, "A limiter", kinds)
        if kind in ("bulkhead", "rate"):
            example = "{bulkhead: 40}" if kind == "bulkhead" else "{rate: 150/s}"
            raise Fault(node.position, f"A {kind} needs a number.", f"Write {example}.")
        if kind == "target_rate":
            raise Fault(node.position, "A target_rate needs a target.", "Write {target_rate: {target: 250ms}}.")
        return LimiterSettings(kind)
    table = fields.table(node, "A limiter", kinds)
    if len(table.entries) != 1:
        raise Fault(node.position, "A limiter is one name with its setting.", "Write {bulkhead: 40}.")
    [(key, inner)] = table.entries.values()
    kind = key.text
    if kind in _PLAIN:
        raise Fault(key.position, f"{kind} takes no setting.", f"Write {kind} without braces.")
    if kind == "bulkhead":
        return LimiterSettings(kind, {"limit": fields.whole_number(inner, kind, 1, 1_000_000)})
    if kind == "rate":
        limit = at_node(inner, parse, fields.text(inner, kind))
        if limit.refill != "exact bucket":
            raise Fault(
                inner.position, f"{kind} is a token bucket, not {describe_node(inner)}.", "Write 150/s burst 20."
            )
        return LimiterSettings(kind, {"limit": limit})
    return _algorithm(kind, inner)


def _algorithm(kind: str, node: Node) -> LimiterSettings:
    """Reads the settings of an algorithm, and refuses those that it would refuse."""
    names = tuple(field.name for field in dataclass_fields(ALGORITHMS[kind]))
    allowed = (*names, "queue") if kind == "adaptive" else names
    table = fields.table(node, kind, allowed)
    readers: dict[str, Callable[[Node, str], Any]] = dict.fromkeys(names, _number)
    readers |= dict.fromkeys(("timeout", "min_window", "target"), _seconds)
    readers["queue"] = (
        (lambda inner, name: 0.0 if _is_zero(inner) else _seconds(inner, name))
        if (kind == "adaptive")
        else _number
    )
    options = read_entries(table, readers)
    if kind == "target_rate" and "target" not in options:
        raise Fault(node.position, "A target_rate needs a target.", "Write {target_rate: {target: 250ms}}.")
    try:
        ALGORITHMS[kind](**{name: value for name, value in options.items() if name in names})
    except InvalidRule as error:
        raise Fault(node.position, str(error)) from None
    return LimiterSettings(kind, options)


def _seeds(node: Node, field: str) -> tuple[int, ...]:
    length = f"of {len(node.nodes)}" if isinstance(node, ListNode) and node.nodes else ""
    if not isinstance(node, ListNode) or not 1 <= len(node.nodes) <= 100:
        raise Fault(
            node.position, f"{field} is a list of 1 to 100 whole numbers, not {length or describe_node(node)}."
        )
    return tuple(read_all(lambda inner: fields.whole_number(inner, "A seed", 0), node.nodes))


def _seconds(node: Node, field: str) -> float:
    return fields.span(node, field) / SECOND


def _is_zero(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.text in ("0", "0s", "0ms")


def _decimal(node: Node, field: str, least: float = 0.0, most: float = 1e9) -> float:
    if isinstance(node, ScalarNode) and not node.quoted and _decimal_pattern.fullmatch(node.text):
        value = float(node.text)
        if least <= value <= most:
            return value
    raise Fault(node.position, f"{field} is a number of at least {least:g}, not {describe_node(node)}.")


def _number(node: Node, field: str) -> float:
    """Returns a whole number as one, and any other as a decimal."""
    whole = fields.number(node)
    return _decimal(node, field) if whole is None else whole


def _rate(node: Node, field: str) -> float:
    """Reads calls per second: a number, or a text such as 100/s or 6000/minute."""
    if isinstance(node, ScalarNode) and not node.quoted and _decimal_pattern.fullmatch(node.text):
        return _decimal(node, field)
    limit = at_node(node, parse, fields.text(node, field))
    if limit.refill != "exact bucket" or limit.units_per_second is None:
        raise Fault(node.position, f"{field} is a number of calls per second, not {describe_node(node)}.")
    return float(limit.units_per_second)


def offered_calls(case: SimulationCase) -> float:
    """Returns about how many calls all limiters and seeds of a case meet together."""
    if isinstance(case.load, ClosedLoad):
        calls: float = case.load.requests
    else:
        calls = sum(stage.duration * stage.rate for stage in case.load)
    return calls * len(case.seeds) * len(case.limiters)
