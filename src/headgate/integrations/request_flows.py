"""The common part of sync and async applications: settings, names of limits, and the flows of a request.

A flow is a generator of steps. RequestLimits calls each step. AsyncRequestLimits also awaits its result if that
can be awaited, so an async application may pass coroutine functions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from time import perf_counter_ns
from typing import Any, ClassVar

from headgate import limiter_flows
from headgate.algorithms.decision import DELAY_US
from headgate.clock import Clock, check_clock
from headgate.enforcement import held_slots
from headgate.enforcement.call_plan import CallPlan, CompiledRulebook
from headgate.enforcement.open_rulebook import Rules, check_rules
from headgate.enforcement.rule_decision import RuleDecision
from headgate.engines.url import parse_engine_url
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge, InvalidRule
from headgate.flow import Flow
from headgate.http import refusal_body
from headgate.http.client_ip import X_FORWARDED_FOR, ForwardingField, Proxies
from headgate.http.refusal_body import RefusalResponse
from headgate.integrations.application_settings import LimitSettings, check_settings, read_limits
from headgate.integrations.code_limit import BoundLimit, CodeLimit, RequestFunction
from headgate.integrations.finish_flows import FinishFlows, L, holds_slots
from headgate.integrations.outage_log import OutageLog
from headgate.integrations.request_parts import KEY_ATTRIBUTE, PartsReader, RequestParts, uses_route
from headgate.integrations.request_plan_cache import AddressPlan, AddressPlans
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.shared_address import SharedAddressAlarm
from headgate.integrations.unknown_settings import reject_unknown
from headgate.integrations.unreachable_limits import (
    RouteInfo,
    check_app_limits,
    check_code_limits,
    check_conditions,
)
from headgate.observer import Observer
from headgate.rules.attributes import Attributes, segments
from headgate.rules.match import Match
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.pattern import PathPattern
from headgate.rules.rule import Headers, Rule, Rulebook
from headgate.validation import check_engine

UNDECIDED_RETRY_S = 1  # Retry-After of a 503
APP = "app"  # names the limits of the whole application

SUPPLY_HINTS = {
    "user": "write user=, a function of the request, where the limits are set up",
    "attributes": "write attributes=, a function that returns it, where the limits are set up",
}

_log = logging.getLogger("headgate")


class RequestFlows(FinishFlows[L]):
    """The base of RequestLimits and AsyncRequestLimits: settings, the names of limits, and the flows."""

    awaited: ClassVar[bool]  # whether its engine is

    def __init__(
        self,
        rules: Rules | None = None,
        engine: Any = "memory://",
        *,
        limits: Sequence[CodeLimit | str] = (),
        user: RequestFunction | None = None,
        attributes: RequestFunction | None = None,
        exempt: Iterable[str] = (),
        trusted_proxies: Iterable[str] = (),
        forwarded_field: ForwardingField = X_FORWARDED_FOR,
        headers: Headers | None = None,
        strict: bool = False,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
        prefix: str = "hg",
        **unknown: object,
    ) -> None:
        reject_unknown(unknown, ("rules", "engine", *LimitSettings.__optional_keys__))
        functions = {"user": user, "attributes": attributes}
        choices = {"headers": headers, "exempt": exempt, "strict": strict, "observers": observers}
        check_settings({**functions, **choices, "prefix": prefix})
        check_clock(clock)
        if isinstance(engine, str):
            parse_engine_url(engine, ruled=True)
        else:
            check_engine(engine, awaited=self.awaited)
        self.rules: Rules = Rulebook() if rules is None else rules
        check_rules(self.rules)
        self.engine_or_url: Any = engine
        self.user: RequestFunction | None = user
        self.attributes: RequestFunction | None = attributes
        self.proxies: Proxies = Proxies(trusted_proxies, forwarded_field)
        self.strict: bool = strict
        self.observers: Sequence[Observer] = observers
        self.clock: Clock | None = clock
        self.prefix: str = prefix
        self.supply_hints: Mapping[str, str] = SUPPLY_HINTS  # a framework may have others
        self._form = headers
        self._exempt = [PathPattern(text) for text in exempt]
        self._alarm = SharedAddressAlarm()
        self._lock = Lock()
        self._limiter: L | None = None
        self._code_rules: dict[str, tuple[Rule, str]] = {}
        self._routes: dict[tuple[str, tuple[int, ...]], tuple[BoundLimit, ...]] = {}
        self.mount_params: Iterable[str] = ()  # path parameters of the mounts that lead to the application
        self.bound_routes: dict[Any, Any] = {}  # a framework's own cache of what it has bound
        self._readers: dict[frozenset[str], PartsReader] = {}
        self._outages = OutageLog()
        self._book: Rulebook | None = None
        self._book_reader = self._reader(())
        self._address_plans = AddressPlans(self._book_reader)
        self.app_limits: tuple[BoundLimit, ...] = self.bind(APP, read_limits("limits", limits))
        self._app_limits_use_route = any(uses_route(bound.limit.uses) for bound in self.app_limits)

    def _open(self) -> L:
        raise NotImplementedError

    @property
    def limiter(self) -> L:
        """The limiter; opened when it is first used."""
        limiter = self._limiter
        if limiter is None:
            with self._lock:
                limiter = self._limiter
                if limiter is None:
                    limiter = self._open()
                    self._check_names(limiter.rulebook)
                    limiter.add_code_rules([rule for rule, _ in self._code_rules.values()])
                    self._limiter = limiter
        return limiter

    @property
    def form(self) -> Headers:
        """The format of the header fields."""
        return self._form or self.limiter.rulebook.headers

    def bind(self, route: str, limits: Sequence[CodeLimit]) -> tuple[BoundLimit, ...]:
        """Names the limits in code of one route, such as "GET /items": always the same for the same route."""
        cache_key = route, tuple(map(id, limits))
        bound = self._routes.get(cache_key)
        if bound is None:
            with self._lock:
                bound = self._routes.get(cache_key) or self._bind(route, limits)
                self._routes[cache_key] = bound
        return bound

    def _bind(self, route: str, limits: Sequence[CodeLimit]) -> tuple[BoundLimit, ...]:
        unnamed, bound, added = 0, [], []
        for limit in limits:
            unnamed += limit.name is None
            name = limit.name or (route if unnamed == 1 else f"{route} ({unnamed})")
            each = limit.bind(name)
            rule, location = self._code_rules.setdefault(name, (each.rule, limit.location))
            if rule != each.rule:
                raise InvalidRule(
                    f'{limit.location}: The limit "{name}" is written differently at {location}. Limits of one '
                    "name share a counter: make them equal, or give each a name of its own."
                )
            if rule is each.rule:
                added.append(rule)
            bound.append(each)
        if self._limiter is not None and added:
            self._check_names(self._limiter.rulebook)
            self._limiter.add_code_rules(added)
        return tuple(bound)

    def _check_names(self, book: Rulebook) -> None:
        for rule in book.rules:
            if rule.name in self._code_rules:
                raise InvalidRule(
                    f'{self._code_rules[rule.name][1]}: The limit "{rule.name}" has the name of a rule in '
                    f"{book.source or 'the rulebook'}: give it another one."
                )

    def check_routes(self, routes: Sequence[RouteInfo]) -> None:
        """Checks all limits against the routes of the application when it starts, and names those in code."""
        self.check_code_limits(routes)
        check_app_limits(self.app_limits, routes, self.how_to_supply, self.mount_params)
        for route in routes:
            self.bind(route.name, route.limits)
        check_conditions(self.limiter.rulebook, self.app_limits, routes, strict=self.strict)

    def check_code_limits(self, routes: Sequence[RouteInfo]) -> None:
        """Raises InvalidRule for limits in code of these routes that can never match. Opens no engine."""
        check_code_limits(routes, self.how_to_supply, self.mount_params)

    def how_to_supply(self, attribute: str) -> str | None:
        """Returns how to supply an attribute; None if the application may have a value for it."""
        if self.attributes is not None or (attribute == "user" and self.user is not None):
            return None
        return self.supply_hints["user" if attribute == "user" else "attributes"]

    @property
    def decides_by_route(self) -> bool:
        """Returns whether a rule, or a limit of all requests, uses the route's template or parameters."""
        return self._app_limits_use_route or uses_route(self._reader_of_book(self.limiter.rulebook).names)

    def exempt_path(self, pattern: str) -> None:
        """Exempts the requests of a path pattern, such as /health or /static/**, from all limits."""
        self._exempt.append(PathPattern(pattern))

    def exempts_template(self, template: str) -> bool:
        """Returns whether all requests of a route are exempt by their path."""
        path = segments(template)
        return any(
            pattern.matches_segments(path) and (pattern.tail is not None or "..." not in template)
            for pattern in self._exempt
        )

    def begin(self, parts: RequestParts) -> RequestRecord:
        """Starts the record of a request. Nothing is decided yet."""
        exempt = False
        if self._exempt:
            path = segments(self._reader(("path",))(parts)["path"])
            exempt = any(pattern.matches_segments(path) for pattern in self._exempt)
        return RequestRecord(parts, exempt)

    def _decide(
        self, record: RequestRecord, limits: Sequence[BoundLimit], with_rules: bool
    ) -> Flow[RefusalResponse | None]:
        """Decides one stage; returns the response if the request is refused, None if it may go on."""
        if record.exempt:
            return None
        try:
            limiter = self.limiter
            compiled = limiter.compiled_rulebook
            record.rule_names = compiled.refusals
            if (with_rules and compiled.rules_with_cost) or any(bound.limit.states_cost for bound in limits):
                record.states_cost = True
            matches, values = yield from self._find_matches(record, compiled if with_rules else None, limits)
            if record.form is None:
                record.form = self._form or compiled.book.headers
            if not matches:
                return None
            plan = CallPlan(compiled, matches, values)
            if limiter.observers is None:
                if not (with_rules and compiled.book.rules):
                    self._address_plans.keep(record.parts, limits, compiled, plan)
                decision: RuleDecision = yield partial(limiter.decide_plan, plan)
            else:
                decision = yield partial(limiter.decide_plan, plan, record.sees_end)
                if record.sees_end:
                    record.reported = (*record.reported, (decision, perf_counter_ns()))
        except (EngineUnavailable, CorruptState) as error:
            return (yield from self._undecided(record, error))
        return (yield from self._conclude(record, limits, plan, decision))

    def _cached_plan(
        self, record: RequestRecord, limits: Sequence[BoundLimit], with_rules: bool
    ) -> AddressPlan | None:
        """Returns how a request like this one was planned before; None if it is to be planned by itself."""
        limiter = self._limiter
        if limiter is None or record.exempt or limiter.observers is not None:
            return None
        compiled = limiter.compiled_rulebook
        cached = self._address_plans.find(record.parts, limits, compiled, with_rules)
        if cached is not None:
            record.rule_names = compiled.refusals
            if record.form is None:
                record.form = self._form or compiled.book.headers
        return cached

    def _undecided(self, record: RequestRecord, error: Exception) -> Flow[RefusalResponse]:
        """Answers a request that the engine did not decide."""
        self._outages.note_failure(error)
        yield from self._give_back(record)
        record.answer = refusal_body.undecided_response(record.parts.header("accept"), wait=UNDECIDED_RETRY_S)
        return record.answer

    def _conclude(
        self, record: RequestRecord, limits: Sequence[BoundLimit], plan: CallPlan, decision: RuleDecision
    ) -> Flow[RefusalResponse | None]:
        """Does what follows from a decision: refuses, or waits, holds slots, and notes what is to be settled."""
        compiled = plan.compiled_rulebook
        if self._outages.active:
            self._outages.note_success()
        if not decision.allowed:
            yield from self._give_back(record)
            record.decisions = [decision]
            record.answer = refusal_body.refusal_response(decision, record.parts.header("accept"))
            return record.answer
        record.add(decision)
        for outcome in decision.outcomes:
            if outcome is not None and outcome[DELAY_US]:
                yield from limiter_flows.serve(decision, self._sleep_us)
                break
        if not plan.is_single_request and holds_slots(decision):
            yield from self._hold(record, decision)
        if compiled.adaptive_rules:
            self.measure_calls(record, decision)
        for bound in limits:
            limit, name = bound.limit, bound.rule.name
            if (limit.refunds or limit.states_cost) and any(rule == name for rule, _ in decision.labels):
                if limit.refunds is not None:
                    record.refunds = (*record.refunds, (limit.refunds, decision, name))
                if limit.states_cost:
                    record.estimates = (*record.estimates, name)
                if limit.cost_after is not None:
                    record.costs_after = (*record.costs_after, (limit, decision, name))
        if compiled.rules_with_cost:
            with_cost: list[str] = [rule for rule, _ in decision.labels if rule in compiled.rules_with_cost]
            record.estimates = (*record.estimates, *with_cost)
        return None

    def _find_matches(
        self, record: RequestRecord, compiled: CompiledRulebook | None, limits: Sequence[BoundLimit]
    ) -> Flow[tuple[list[Match], Attributes | None]]:
        """Applies the rulebook and these limits to a request; returns what it is to be charged, and the attributes
        that the rulebook was matched with."""
        matches: list[Match] = []
        values: Attributes | None = None
        if compiled is not None and compiled.book.rules:
            values = yield from self._values(record, self._reader_of_book(compiled.book))
            matches += compiled.match(values, None)
        for bound in limits:
            match = yield from self._match(record, bound)
            if match is not None:
                matches.append(match)
        return matches, values

    def _hold(self, record: RequestRecord, decision: RuleDecision) -> Flow[None]:
        """Holds the slots of a decision until the request ends."""
        hold = held_slots.hold(decision)
        if hold is not None:
            holding = self._holding(decision, hold)
            yield partial(self._enter, holding)
            record.holdings = (*record.holdings, holding)

    def _match(self, record: RequestRecord, bound: BoundLimit) -> Flow[Any]:
        limit, native = bound.limit, record.parts.native
        if limit.exempt_function is not None and (yield partial(self._call, limit.exempt_function, native)):
            return None
        values = yield from self._values(record, self._reader(limit.uses))
        if limit.key_function is not None:
            key = yield partial(self._call, limit.key_function, native)
            if key == "" and limit.rule.missing == "skip":
                raise InvalidCharge(
                    f'{limit.location}: The key of a request is "", which would exempt it from the limit. Return '
                    'None where you mean that, or say how such requests count: missing="one" or "deny".'
                )
            values[KEY_ATTRIBUTE] = key
        cost = 1
        if limit.cost_function is not None:
            cost = yield partial(self._call, limit.cost_function, native)
            limit.check_returned_cost(cost)
        return bound.match(values, cost)

    def _values(self, record: RequestRecord, reader: PartsReader) -> Flow[Attributes]:
        """Reads the attributes of a request; asks the application for those that only it knows."""
        values = reader(record.parts)
        unknown = reader.unknown
        if not unknown:
            return values
        if "user" in unknown and self.user is not None:
            if record.user is None:
                user = yield partial(self._call, self.user, record.parts.native)
                record.user = (user,)
            values["user"] = record.user[0]
        if self.attributes is not None:
            if record.attributes is None:
                record.attributes = (yield partial(self._call, self.attributes, record.parts.native)) or {}
            if not isinstance(record.attributes, Mapping):
                raise InvalidCharge(
                    f'attributes= returns a mapping such as {{"plan": "pro"}}, not {record.attributes!r}.'
                )
            values.update({name: record.attributes[name] for name in unknown if name in record.attributes})
        return values

    def _reader(self, names: Iterable[str]) -> PartsReader:
        names = frozenset(names)
        reader = self._readers.get(names)
        if reader is None:
            reader = self._readers[names] = PartsReader(names, self.proxies, self._alarm)
        return reader

    def _reader_of_book(self, book: Rulebook) -> PartsReader:
        if book is not self._book:
            captured = {name for rule in book.rules if rule.when for name in rule.when.captures}
            names = {name for rule in book.rules for name in used_attributes(rule)}
            self._book, self._book_reader = book, self._reader(names - captured)
        return self._book_reader

    # What differs between sync and async:
    def _sleep_us(self, duration_us: int) -> Any:
        raise NotImplementedError

    def _holding(self, decision: RuleDecision, hold: Any) -> Any:
        raise NotImplementedError

    def _enter(self, holding: Any) -> Any:
        raise NotImplementedError
