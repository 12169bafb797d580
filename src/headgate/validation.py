"""Validates engines, keys, costs, limits and decisions before an engine sees them.

Bad input gets a sentence here and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Generic, Protocol, TypeVar

from headgate.algorithms.decision import Charge, Decision, JointDecision, Outcome, Unbound
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.calendar import time_zone
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse_all

_ENGINE_VERBS = "meter", "slots", "decide_all", "overrides", "shard", "close"

LimitLike = Limit | str | Sequence[Limit]


class Named(Protocol):
    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...


M = TypeVar("M", bound=Named)
S = TypeVar("S", bound=Named)


def limits_of(limit: LimitLike) -> tuple[Limit, ...]:
    """One or several limits, from objects or from words."""
    if isinstance(limit, str):
        return parse_all(limit)
    limits = [limit] if isinstance(limit, Limit) else limit
    if not isinstance(limits, list | tuple) or not limits or not all(isinstance(one, Limit) for one in limits):
        raise InvalidRule(f"A limit is a Limit or its text, such as 10/minute; not {limit!r}.")
    for one in limits:
        check_zone(one)
    return tuple(limits)


def check_zone(limit: Limit) -> None:
    """Refuses a time zone that does not exist. The model cannot: it knows no zones."""
    if isinstance(limit, FixedWindow) and limit.zone is not None:
        time_zone(limit.zone)


def check_engine(engine: object, *, awaited: bool) -> None:
    """Refuses what is no engine, an awaited engine for Limiter, and any other for AsyncLimiter."""
    name = type(engine).__name__
    if isinstance(engine, type) or not all(callable(getattr(engine, verb, None)) for verb in _ENGINE_VERBS):
        hint = ": give its URL" if name in ("Redis", "Valkey", "RedisCluster", "ValkeyCluster") else ""
        raise InvalidRule(
            "An engine is a URL such as memory:// or redis://host:6379/0, or what "
            f"{'open_async_engine' if awaited else 'open_engine'} returns; not {describe(engine)}{hint}."
        )
    if _awaited(engine, "decide_all", "close") != awaited:
        if awaited:
            raise InvalidRule(f"This engine ({name}) is not awaited. Use Limiter, or open_async_engine(url).")
        raise InvalidRule(f"This engine ({name}) is awaited. Use AsyncLimiter, or open_engine(url).")


def check_decision(decision: object, *, awaited: bool | None = None) -> Decision:
    """Refuses what is no decision, and one that only a limiter of the other kind can give back."""
    if not isinstance(decision, Decision):
        hint = ". Give its .decision" if isinstance(getattr(decision, "decision", None), Decision) else ""
        raise InvalidCharge(
            f"A decision is expected, as take or check returns it; not {describe(decision)}{hint}."
        )
    for part in (*decision.parts, *decision.beside):
        if isinstance(part.source, Unbound):
            raise InvalidCharge(
                "This decision was copied or pickled, and nothing can be given back by a copy: keep the decision "
                "itself, or use the receipts of a limiter with rules."
            )
        if awaited is None or not hasattr(part.source, "reset"):
            continue
        if _awaited(part.source, "reset", "refund", "release") != awaited:
            raise InvalidCharge(
                "This decision was not awaited: give it to a Limiter."
                if awaited
                else "This decision was awaited: give it to an AsyncLimiter."
            )
    return decision


def _awaited(thing: object, *verbs: str) -> bool:
    return any(iscoroutinefunction(getattr(thing, verb, None)) for verb in verbs)


def describe(thing: object) -> str:
    """Names a value in a sentence: a plain one by itself, any other by its class."""
    if thing is None or isinstance(thing, str | bytes | int | float | dict | list | tuple):
        return repr(thing)[:60]
    name = getattr(thing, "__qualname__", None) or type(thing).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def check_key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidCharge(f"A key is a string, not {type(key).__name__}. Name whose count this is.")
    if not key:
        raise InvalidCharge("A key must not be empty: everybody without a name would share one count.")
    return key


def check_cost(cost: object, *, spends: bool = False) -> int:
    """A cost that can be charged; `spends`: at least 1."""
    if type(cost) is not int:
        raise InvalidCharge(f"A cost is a whole number, not {cost!r}.")
    if cost < spends:
        hint = "To give units back, use refund." if cost else "To look without charging, use peek."
        raise InvalidCharge(f"A cost is at least {int(spends)}, not {cost}. {hint}")
    return cost


def check_units(units: object) -> int:
    """A cost that can be given back."""
    if type(units) is not int or units < 0:
        kind = "at least 0" if type(units) is int else "a whole number"
        raise InvalidCharge(f"A cost to give back is {kind}, not {units!r}.")
    return units


class Asked(Generic[M]):
    """Charges, checked; those on the same count are put together, because they must see each other."""

    def __init__(self, charges: Sequence[tuple[M, str, int]]) -> None:
        self._charges = charges
        counts: dict[tuple[str, str, str], int] = {}
        self.distinct: list[tuple[M, str, int]] = []
        self._place: list[int] = []
        for meter, key, cost in charges:
            place = counts.setdefault((meter.limit.algorithm, meter.name, key), len(self.distinct))
            if place == len(self.distinct):
                self.distinct.append((meter, key, cost))
            else:
                first, _, spent = self.distinct[place]
                if first.limit != meter.limit:
                    raise InvalidCharge(f'"{meter.name}" cannot be {first.limit} and {meter.limit} at once.')
                self.distinct[place] = first, key, spent + cost
            self._place.append(place)

    def decision(self, facts: Sequence[Outcome]) -> Decision:
        parts = [
            Decision(fact, meter, key, cost) for fact, (meter, key, cost) in zip(facts, self.distinct, strict=True)
        ]
        if len(self._charges) == 1:
            return parts[0]
        charges = zip(self._place, self._charges, strict=True)
        return JointDecision(parts, [(facts[place], *charge) for place, charge in charges])


class Asking(Generic[M, S]):
    """A limiter's limits, bound to an engine's meters: one or several rates, or slots."""

    def __init__(
        self,
        limits: Sequence[Limit],
        names: Sequence[str],
        bind: Callable[[Limit, str], M],
        bind_slots: Callable[[Slots, str], S],
    ) -> None:
        self._bind, self._bind_slots = bind, bind_slots
        self._names = names
        self.meters: list[M] = []
        self.slots: S | None = None
        self._others: dict[tuple[Limit, str], M] = {}
        if len(limits) == 1 and isinstance(limits[0], Slots):
            self.slots = bind_slots(limits[0], names[0])
        else:
            self.meters = [bind(_rate(limit), name) for limit, name in zip(limits, names, strict=True)]

    def changed(self, limit: LimitLike) -> Asking[M, S]:
        """The same names under other limits, so that counts carry over."""
        limits = limits_of(limit)
        if len(limits) != len(self._names):
            raise InvalidRule(f"{len(self._names)} limits cannot become {len(limits)}.")
        return Asking(limits, self._names, self._bind, self._bind_slots)

    def of(self, key: object, cost: object, *, spends: bool = False) -> Asked[M]:
        """One charge on each of the limiter's own limits."""
        key, cost = check_key(key), check_cost(cost, spends=spends)
        if self.slots is not None:
            raise InvalidCharge(f'"{self.slots.limit}" is held, not taken: use acquire and release.')
        return Asked([(meter, key, cost) for meter in self.meters])

    def charges(self, charges: Sequence[Charge | tuple[str, LimitLike]]) -> Asked[M]:
        """Charges of anybody's: a Charge, or a plain (key, limit)."""
        asked: list[tuple[M, str, int]] = []
        for charge in charges if isinstance(charges, list | tuple) else (charges,):
            if not isinstance(charge, tuple) or not 0 < len(charge) <= len(Charge._fields):
                raise InvalidCharge(f"A charge is a Charge or a (key, limit), not {charge!r}.")
            key, limit, cost, name = Charge(*charge)
            key, cost = check_key(key), check_cost(cost)
            asked += [(meter, key, cost) for meter in self._meters(limit, name)]
        if not asked:
            raise InvalidCharge("There is nothing to decide: give at least one charge.")
        return Asked(asked)

    def slots_of(self, key: object) -> S:
        """The slots' meter, which is all that can be acquired."""
        check_key(key)
        if self.slots is None:
            limits = "; ".join(str(meter.limit) for meter in self.meters)
            raise InvalidCharge(f'Only slots are acquired, such as "20 slots"; "{limits}" is taken.')
        return self.slots

    def _meters(self, limit: LimitLike | None, name: str | None) -> list[M]:
        if limit is None:
            if self.slots is not None:
                _rate(self.slots.limit)
            return self.meters
        limits = limits_of(limit)
        return [self._other(one, named) for one, named in zip(limits, names_of(limits, name), strict=True)]

    def _other(self, limit: Limit, name: str) -> M:
        meter = self._others.get((limit, name))
        if meter is None:
            meter = self._others[limit, name] = self._bind(_rate(limit), name)
        return meter


def names_of(limits: Sequence[Limit], name: str | None) -> list[str]:
    """What the counts of each limit are filed under."""
    if name is None:
        return [limit.text for limit in limits]
    if not name:
        raise InvalidRule("A limiter's name must not be empty.")
    return [name] if len(limits) == 1 else [f"{name}#{i}" for i in range(len(limits))]


def _rate(limit: Limit) -> Limit:
    if isinstance(limit, Slots):
        raise InvalidCharge(f'"{limit}" is held, not taken: give it a limiter of its own, and use acquire.')
    return limit
