"""Validates engines, keys, costs, limits and decisions before an engine sees them.

Invalid input raises an error with a sentence that helps, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Generic, Protocol, TypeVar

from headgate.algorithms.decision import AdaptiveOutcome, Charge, Decision, DetachedLimit, JointDecision, Outcome
from headgate.algorithms.limit import HORIZON_US, SECOND, UNLIMITED, Limit
from headgate.algorithms.pause import MAX_PAUSE_US
from headgate.algorithms.slots import Slots
from headgate.calendar import time_zone
from headgate.engines.charge_options import ChargeOptions
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse_all

_ENGINE_VERBS = "meter", "slots", "decide_all", "overrides", "shard", "close"

LimitLike = Limit | str | Sequence[Limit]
_SEQUENCES = list, tuple
_CACHED_LIMITS = Limit, str  # a union would be made anew by every call
_CHARGE_DEFAULTS = ("", *Charge("")[1:])
_CHARGE_LENGTH = len(_CHARGE_DEFAULTS)
_KEY_AND_LIMIT = 2
_MAX_LIMIT_OBJECTS = 1024


class NamedLimit(Protocol):
    """A meter as seen from here: its limit, and the name that its counters are stored under."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...


M = TypeVar("M", bound=NamedLimit)
S = TypeVar("S", bound=NamedLimit)


def limits_of(limit: LimitLike) -> tuple[Limit, ...]:
    """Returns one or several limits, given as objects or as text."""
    if isinstance(limit, str):
        return parse_all(limit)
    limits = [limit] if isinstance(limit, Limit) else limit
    if not isinstance(limits, list | tuple) or not limits or not all(isinstance(each, Limit) for each in limits):
        way = " An adaptive limit is a rule: Limiter.from_rules(...)." if _is_adaptive(limit) else ""
        raise InvalidRule(f"A limit is a Limit or its text, such as 10/minute; not {limit!r}.{way}")
    for each in limits:
        check_zone(each)
    return tuple(limits)


def _is_adaptive(limit: object) -> bool:
    """Returns whether an adaptive limit is meant, which only rules have."""
    return isinstance(limit, dict) and "adaptive" in limit


def check_zone(limit: Limit) -> None:
    """Raises InvalidRule if a limit's time zone does not exist. The models cannot check that: they know no
    zones."""
    if limit.zone is not None:
        time_zone(limit.zone)


def check_engine(engine: Any, *, awaited: bool) -> None:
    """Raises InvalidRule unless this is an engine, and for AsyncLimiter an awaited one, for Limiter not."""
    name = type(engine).__name__
    if isinstance(engine, type) or not all(callable(getattr(engine, verb, None)) for verb in _ENGINE_VERBS):
        hint = ": give its URL" if name in ("Redis", "Valkey", "RedisCluster", "ValkeyCluster") else ""
        raise InvalidRule(
            "An engine is a URL such as memory:// or redis://host:6379/0, or what "
            f"{'open_async_engine' if awaited else 'open_engine'} returns; not {describe(engine)}{hint}."
        )
    if iscoroutinefunction(engine.close) != awaited:
        if awaited:
            raise InvalidRule(f"This engine ({name}) is not awaited. Use Limiter, or open_async_engine(url).")
        raise InvalidRule(f"This engine ({name}) is awaited. Use AsyncLimiter, or open_engine(url).")


def check_decision(decision: object, *, awaited: bool | None = None) -> Decision:
    """Raises InvalidCharge unless this is a decision that a limiter of this kind can refund."""
    if not isinstance(decision, Decision):
        hint = ". Give its .decision" if isinstance(getattr(decision, "decision", None), Decision) else ""
        if hint and hasattr(decision, "release"):
            hint = ". Slots are held, not charged: release it instead"
        raise InvalidCharge(
            f"A decision is expected, as take or check returns it; not {describe(decision)}{hint}."
        )
    for part in (*decision.counter_decisions, *decision.shadow_decisions):
        if isinstance(part.source, DetachedLimit):
            raise InvalidCharge(
                "This decision was copied or pickled, and nothing can be given back by a copy: keep the decision "
                "itself, or use the receipts of a limiter with rules."
            )
        if awaited is None or part.source.limit is UNLIMITED or isinstance(part.outcome, AdaptiveOutcome):
            continue
        meter: Any = part.source
        if iscoroutinefunction(meter.reset) != awaited:
            raise InvalidCharge(
                "This decision was not awaited: give it to a Limiter."
                if awaited
                else "This decision was awaited: give it to an AsyncLimiter."
            )
    return decision


def describe(thing: object) -> str:
    """Returns how an error message names a value: simple ones by their repr, others by their class."""
    if thing is None or isinstance(thing, str | bytes | int | float | dict | list | tuple):
        return repr(thing)[:60]
    name = getattr(thing, "__qualname__", None) or type(thing).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def check_key(key: object) -> str:
    """Returns the key if it is a string that is not empty; raises InvalidCharge otherwise."""
    if not isinstance(key, str):
        raise InvalidCharge(f"A key is a string, not {type(key).__name__}. Name whose count this is.")
    if not key:
        raise InvalidCharge("A key must not be empty: everybody without a name would share one count.")
    return key


def check_cost(cost: object, *, spends: bool = False) -> int:
    """Returns the cost if it can be charged; raises InvalidCharge otherwise. `spends`: it must be at least 1."""
    if type(cost) is not int:
        raise InvalidCharge(f"A cost is a whole number, not {cost!r}.")
    if cost < spends:
        hint = "To give units back, use refund." if cost else "To look without charging, use peek."
        raise InvalidCharge(f"A cost is at least {int(spends)}, not {cost}. {hint}")
    return cost


def check_units(units: object) -> int:
    """Returns the number of units if it can be refunded; raises InvalidCharge otherwise."""
    if type(units) is not int or units < 0:
        kind = "at least 0" if type(units) is int else "a whole number"
        raise InvalidCharge(f"A cost to give back is {kind}, not {units!r}.")
    return units


class ChargeBatch(Generic[M]):
    """Validated charges, ready for an engine. Charges on the same counter are merged: they must see each other.

    distinct    one (meter, key, cost) for each counter
    """

    def __init__(self, charges: Sequence[tuple[M, str, int]], has_one_cost: bool = True) -> None:
        self._charges = charges
        self._has_one_cost = has_one_cost
        self.distinct: Sequence[tuple[M, str, int]] = charges
        self._indexes: Sequence[int] = range(len(charges))
        keys = {key for _, key, _ in charges}  # mostly they differ
        if len(keys) < len(charges) > len({(meter.name, key) for meter, key, _ in charges}):
            self._merge()

    def _merge(self) -> None:
        """Merges charges on the same counter."""
        counts: dict[tuple[str, str, str], int] = {}
        distinct: list[tuple[M, str, int]] = []
        indexes: list[int] = []
        for meter, key, cost in self._charges:
            index = counts.setdefault((meter.limit.algorithm, meter.name, key), len(distinct))
            if index == len(distinct):
                distinct.append((meter, key, cost))
            else:
                first, _, first_cost = distinct[index]
                if first.limit != meter.limit:
                    raise InvalidCharge(f'"{meter.name}" cannot be {first.limit} and {meter.limit} at once.')
                distinct[index] = first, key, first_cost + cost
            indexes.append(index)
        self.distinct, self._indexes = distinct, indexes

    def decision(self, outcomes: Sequence[Outcome]) -> Decision:
        """Returns the decision that the engine's outcomes make, one outcome for each distinct charge."""
        if len(self._charges) == 1:
            return Decision(outcomes[0], *self.distinct[0])
        decision = JointDecision(outcomes, self.distinct, self._charges, self._indexes)
        decision.has_one_cost = self._has_one_cost
        return decision


class BoundLimits(Generic[M, S]):
    """The limits of a limiter, bound to an engine's meters: one or several rates, or slots."""

    def __init__(
        self,
        limits: Sequence[Limit],
        names: Sequence[str],
        bind: Callable[..., M],
        bind_slots: Callable[..., S],
        pause_name: str | None = None,
    ) -> None:
        self._bind, self._bind_slots = bind, bind_slots
        self._names = names
        self.pause_name: str | None = (
            pause_name  # what pauses are stored under; None: the limiter cannot be paused
        )
        self.meters: list[M] = []
        self.slots: S | None = None
        self._explicit_meters: dict[tuple[Any, str | None], list[M]] = {}  # by limits as callers state them
        self._meters_by_id: dict[int, tuple[Limit, M]] = {}  # the same of a Limit without a name, by its id
        options = () if pause_name is None else (pause_options(limits, names, pause_name),)
        if len(limits) == 1 and isinstance(limits[0], Slots):
            self.slots = bind_slots(limits[0], names[0], *options)
        else:
            self.meters = [bind(_rate(limit), name, *options) for limit, name in zip(limits, names, strict=True)]

    def with_limits(self, limit: LimitLike) -> BoundLimits[M, S]:
        """Returns the same names with other limits, so that counters carry over."""
        limits = limits_of(limit)
        if len(limits) != len(self._names):
            raise InvalidRule(f"{len(self._names)} limits cannot become {len(limits)}.")
        return BoundLimits(limits, self._names, self._bind, self._bind_slots, self.pause_name)

    def charge_each(self, key: object, cost: object, *, spends: bool = False) -> ChargeBatch[M]:
        """Returns one charge on each of the limiter's limits."""
        key, cost = check_key(key), check_cost(cost, spends=spends)
        if self.slots is not None:
            raise InvalidCharge(f'"{self.slots.limit}" is held, not taken: use acquire and release.')
        return ChargeBatch([(meter, key, cost) for meter in self.meters])

    def batch(self, charges: Sequence[Charge | tuple[str, LimitLike]]) -> ChargeBatch[M]:
        """Returns the charges of a take_all call: each a Charge, or a (key, limit)."""
        bound_charges: list[tuple[M, str, int]] = []
        charges = charges if isinstance(charges, _SEQUENCES) else (charges,)
        meter_of = self._meters_by_id.get
        for charge in charges:
            # Mostly it is a key and a limit object that came before: to hash the limit would take longer.
            if charge.__class__ is tuple and len(charge) == _KEY_AND_LIMIT:
                key, limit = charge
                bound = meter_of(id(limit))
                if bound is not None and bound[0] is limit and key.__class__ is str and key:
                    bound_charges.append((bound[1], key, 1))
                    continue
            if not isinstance(charge, tuple) or not 0 < len(charge) <= _CHARGE_LENGTH:
                raise InvalidCharge(f"A charge is a Charge or a (key, limit), not {charge!r}.")
            key, limit, cost, name = charge + _CHARGE_DEFAULTS[len(charge) :]
            if key.__class__ is not str or not key or cost.__class__ is not int or cost < 0:
                check_key(key)
                check_cost(cost)
            meters = self._explicit_meters.get((limit, name)) if isinstance(limit, _CACHED_LIMITS) else None
            meters = self._meters(limit, name) if meters is None else meters
            for meter in meters:
                bound_charges.append((meter, key, cost))  # noqa: PERF401 (a comprehension takes longer)
            if name is None and isinstance(limit, Limit):
                if len(self._meters_by_id) >= _MAX_LIMIT_OBJECTS:
                    self._meters_by_id.clear()
                self._meters_by_id[id(limit)] = limit, meters[0]
        if not bound_charges:
            raise InvalidCharge("There is nothing to decide: give at least one charge.")
        return ChargeBatch(bound_charges, has_one_cost=len(charges) == 1)

    def slot_meter(self, key: object) -> S:
        """Returns the meter of the slots; raises InvalidCharge if the limit is a rate, which cannot be
        acquired."""
        check_key(key)
        if self.slots is None:
            limits = "; ".join(str(meter.limit) for meter in self.meters)
            raise InvalidCharge(f'Only slots are acquired, such as "20 slots"; "{limits}" is taken.')
        return self.slots

    def pausable_meter(self, key: object) -> M | S:
        """Returns the meter that pauses the key; raises InvalidCharge if the limiter cannot be paused."""
        check_key(key)
        if self.pause_name is None:
            raise InvalidCharge("This limiter cannot be paused: make it with pausable=True, in every process.")
        return self.meters[0] if self.slots is None else self.slots

    def _meters(self, limit: LimitLike | None, name: str | None) -> list[M]:
        if limit is None:
            if self.slots is not None:
                _rate(self.slots.limit)
            return self.meters
        limits = limits_of(limit)
        meters = [
            self._explicit_meter(each, named) for each, named in zip(limits, names_of(limits, name), strict=True)
        ]
        if isinstance(limit, _CACHED_LIMITS):
            self._explicit_meters[limit, name] = meters
        return meters

    def _explicit_meter(self, limit: Limit, name: str) -> M:
        meters = self._explicit_meters.get((limit, name))
        if meters is None:
            meters = self._explicit_meters[limit, name] = [self._bind(_rate(limit), name)]
        return meters[0]


def pause_options(limits: Sequence[Limit], names: Sequence[str], pause_name: str) -> ChargeOptions:
    """Returns the options of a limiter that can be paused: which counts a pause holds up."""
    counts = [(limit.algorithm, name) for limit, name in zip(limits, names, strict=True)]
    # Leases are held in real time, and go on.
    return ChargeOptions(pause_name, pauses=tuple(count for count in counts if count[0] != Slots.algorithm))


def pause_name_of(names: Sequence[str], name: str | None) -> str:
    """Returns the name that the pauses of a limiter are stored under."""
    return "; ".join(names) if name is None else name


def pause_us(seconds: object, max_seconds: float) -> int:
    """Returns the length of a pause, at most the greatest; raises InvalidCharge if it is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise InvalidCharge(f"A pause lasts a number of seconds above 0, not {seconds!r}.")
    return max(1, round(min(seconds, max_seconds) * SECOND))


MAX_PAUSE_S = MAX_PAUSE_US / SECOND  # unless a limiter sets another


def check_max_pause(seconds: object, pausable: object) -> float:
    """Returns the longest pause of a limiter; raises InvalidRule if there is none like that."""
    if not isinstance(pausable, bool):
        raise InvalidRule(f"pausable is True or False, not {pausable!r}.")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= HORIZON_US / SECOND:
        raise InvalidRule(f"max_pause is a number of seconds above 0, at most 366 days; not {seconds!r}.")
    if not pausable and seconds != MAX_PAUSE_S:
        raise InvalidRule(f"max_pause={seconds!r} has no effect on a limiter without pausable=True: add that.")
    return float(seconds)


def names_of(limits: Sequence[Limit], name: str | None) -> list[str]:
    """Returns the name that the counters of each limit are stored under."""
    if name is None:
        return [limit.text for limit in limits]
    if not name:
        raise InvalidRule("A limiter's name must not be empty.")
    return [name] if len(limits) == 1 else [f"{name}#{i}" for i in range(len(limits))]


def _rate(limit: Limit) -> Limit:
    if isinstance(limit, Slots):
        raise InvalidCharge(f'"{limit}" is held, not taken: give it a limiter of its own, and use acquire.')
    return limit
