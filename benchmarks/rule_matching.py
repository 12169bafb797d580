"""Measures the cost of finding the rules that apply to a call, with 10 and with 1,000 rules.

Books of several shapes: rules told apart by path, by host, by a tenant's header, by host and path together; by
globs of one beginning each (bot-17-*), of one end each (*.shop-17.example.com) and in segments of the path; and by
globs that are open at both ends (*-17-x*), which no index can help. Four rules apply to every call, with keys of
one and two dimensions; one captures a segment. Calls come from 1,000 users and addresses, a tenth of them IPv6.
They are handed in as a plain dict of six, and as what `request` made of twenty headers; what that costs stands at
the end. An empty function called the same way is the floor. And a whole check of a thousand rules on the embedded
engine stands beside that engine alone, asked the same four charges: with calls that came before, which are not
matched again, and with 20,000 different ones, which are.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.interleaved_runs import (
    Samples,
    Stretch,
    Subject,
    decisions_per_second,
    last_core,
    median,
    ratio,
    run_interleaved,
)
from benchmarks.report import BenchmarkReport, figure
from headgate.engines.memory.engine import MemoryEngine
from headgate.limiter import Limiter
from headgate.rules import load
from headgate.rules.attributes import request
from headgate.rules.match import Matcher

SPEED = "per_cpu_second"
INDEXED = ("path", "host", "tenant", "host and path", "glob by beginning", "glob by end", "glob in a path")
SHAPES = (*INDEXED, "glob, not indexable")
SIZES = (10, 100, 1000)
HANDED = ("dict", "request")
EMPTY = "an empty function"
REQUEST = "request() of 20 headers"
CHECK = "check() by 1,000 rules, four of which apply"
CHECK_ANEW = "the same, of calls that came not before"
ENGINE = "the embedded engine alone, four charges"

HOST, TENANT = "shop.example.com", "acme"


def answer(report: BenchmarkReport) -> None:
    subjects = [
        Subject(EMPTY, empty),
        Subject(REQUEST, reading),
        Subject(CHECK, checking),
        Subject(CHECK_ANEW, checking, (20_000,)),
        Subject(ENGINE, asking),
    ]
    subjects += [
        Subject(_name(shape, size, handed), matching, (shape, size, handed))
        for shape in SHAPES
        for size in SIZES
        for handed in HANDED
    ]
    samples = run_interleaved(report, "match", subjects, rounds=15, seconds=0.1, core=last_core())
    report.say(
        "Microseconds of CPU for a call that four rules apply to; medians. Ratios are formed within each round."
    )
    for handed in HANDED:
        report.say(f"Attributes handed in as {'a plain dict' if handed == 'dict' else 'made by request()'}:")
        report.table(
            ["rules told apart by", *(f"{size} rules" for size in SIZES), "1,000 over 10", "1,000 over empty"],
            [_row(samples, shape, handed) for shape in SHAPES],
        )
    rest = (EMPTY, REQUEST, CHECK, CHECK_ANEW, ENGINE)
    report.table(["", "us"], [[name, figure(_us(samples, name))] for name in rest])
    report.target(f"{CHECK}, over {ENGINE}", ratio(samples, ENGINE, CHECK, SPEED), at_most=1.4)
    for handed in HANDED:
        for shape in INDEXED:
            grown = ratio(samples, _name(shape, 10, handed), _name(shape, 1000, handed), SPEED)
            report.target(f"1,000 rules over 10, by {shape}, {handed}", grown, at_most=3)
        worst = max(_us(samples, _name(shape, 1000, handed)) for shape in INDEXED)
        report.target(f"microseconds of the slowest shape of 1,000, {handed}", worst, at_most=12)


def _row(samples: Samples, shape: str, handed: str) -> list[str]:
    names = [_name(shape, size, handed) for size in SIZES]
    grown = ratio(samples, names[0], names[-1], SPEED)
    beside = ratio(samples, EMPTY, names[-1], SPEED)
    return [shape, *(figure(_us(samples, name)) for name in names), figure(grown), figure(beside)]


def _us(samples: Samples, name: str) -> float:
    return 1e6 / median(samples, name, SPEED)


def _name(shape: str, size: int, handed: str) -> str:
    return f"{shape}, {size} rules, {handed}"


def empty() -> Stretch:
    return over_calls(lambda attributes: None, _calls("dict"))


def reading() -> Stretch:
    parts = [_parts(number) for number in range(1000)]
    return over_calls(lambda part: request("GET", part[0], part[1], part[2], user=part[3]), parts)


def matching(shape: str, size: int, handed: str) -> Stretch:
    match, calls = Matcher(load.from_mapping(book(shape, size))).match, _calls(handed)
    if any(len(match(call)) != 4 for call in calls):
        raise RuntimeError("it is not four rules that apply, and four are what is measured")
    return over_calls(match, calls)


def checking(different_calls: int = 1000) -> Stretch:
    limiter = Limiter.from_rules(book("path", 1000, "1000000/s"))
    return over_calls(limiter.check, _calls("request", different_calls))


def asking() -> Stretch:
    limiter = Limiter.from_rules(book("path", 1000, "1000000/s"))
    engine = MemoryEngine()
    charges = [
        [(engine.meter(verdict.limit, f"r{place}"), verdict.key, 1) for place, verdict in enumerate(parts)]
        for parts in (limiter.check(call).verdicts for call in _calls("request"))
    ]
    return over_calls(engine.decide_all, charges)


def over_calls(call: Callable[[Any], Any], given: Sequence[Any]) -> Stretch:
    turn = itertools.cycle(given)
    return lambda calls: decisions_per_second(call, list(itertools.islice(turn, calls)))


def book(shape: str, size: int, limit: str = "10/s") -> dict[str, Any]:
    """Four rules that apply, and others that do not."""
    item = {"path": "/items/{sku}", "method": ["GET", "HEAD"]}
    rules: list[dict[str, Any]] = [
        {"key": "address"},
        {"when": item, "key": ["user", "sku"]},
        {"when": {"host": HOST, "path": "/items/**"}, "key": ["user", "address/24/56"]},
        {"when": {"header.x-tenant": TENANT}, "key": "header.x-tenant"},
    ]
    rules += [{"when": _elsewhere(shape, number), "key": "user"} for number in range(size - len(rules))]
    named = [{"name": f"r{number}", "limit": limit, **rule} for number, rule in enumerate(rules)]
    return {"defaults": {"missing": "one"}, "rules": named}


def _elsewhere(shape: str, number: int) -> dict[str, Any]:
    match shape:
        case "path":
            return {"path": f"/service-{number}/orders/{{id}}", "method": "GET"}
        case "host":
            return {"host": f"shop-{number}.example.com"}
        case "tenant":
            return {"header.x-tenant": f"tenant-{number}", "path": "/items/**"}
        case "host and path":
            host = HOST if number % 30 == 0 else f"shop-{number % 30}.example.com"
            return {"host": host, "path": f"/{'items' if number % 30 else 'orders'}/part-{number // 30}/**"}
        case "glob by beginning":
            return {"user": f"bot-{number}-*"}
        case "glob by end":
            return {"host": f"*.shop-{number}.example.com"}
        case "glob in a path":
            return {"path": f"/img-{number}-*/x", "method": "GET"}
        case _:
            return {"user": f"*-{number}-x*"}


def _calls(handed: str, count: int = 1000) -> list[Any]:
    made: list[Any] = []
    for number in range(count):
        target, headers, address, user = _parts(number)
        if handed == "request":
            made.append(request("GET", target, headers, address, user=user))
            continue
        path = target.partition("?")[0]
        call = {"method": "GET", "path": path, "host": HOST, "address": address, "user": user}
        made.append(call | {"header.x-tenant": TENANT})
    return made


def _parts(number: int) -> tuple[str, list[tuple[str, str]], str, str]:
    headers = [("Host", HOST), ("X-Tenant", TENANT), ("Cookie", "sid=4f1c; theme=dark")]
    headers += [(f"X-Other-{other}", "some value") for other in range(17)]
    address = f"203.0.{number % 256}.{number // 256}" if number % 10 else f"2001:db8:{number:x}::1"
    return f"/items/sku-{number}?page=2", headers, address, f"user-{number}"
