"""The common part of sync and async applications: settings, names of limits, and the flows of a request.

A flow is a generator of steps. RequestLimits calls each, AsyncRequestLimits awaits it if it can be awaited; so
functions of the application may be coroutines where the framework is async.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Generic, TypedDict, TypeVar

from headgate import limiter_flows
from headgate.algorithms.decision import DELAY_US
from headgate.algorithms.slots import Slots
from headgate.clock import Clock
from headgate.enforcement import held_slots
from headgate.enforcement.open_rulebook import Rules
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge, InvalidRule, LeaseLost
from headgate.flow import Flow
from headgate.http import refusal_body
from headgate.http.client_ip import X_FORWARDED_FOR, ForwardingField, Proxies
from headgate.http.refusal_body import RefusalResponse
from headgate.integrations.code_limit import BoundLimit, CodeLimit, RequestFunction
from headgate.integrations.request_parts import KEY_ATTRIBUTE, PartsReader, RequestParts
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.shared_address import SharedAddressAlarm
from headgate.integrations.unreachable_limits import RouteInfo, check_code_limits, check_rulebook
from headgate.rules.attributes import ROUTE_PREFIX, Attributes, segments
from headgate.rules.match import Match
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.pattern import PathPattern
from headgate.rules.rule import Headers, Rule, Rulebook

L = TypeVar("L", RuleLimiter, AsyncRuleLimiter)

REPORT_EVERY_S = 10.0  # an outage is not one line of the log for each request
APP = "app"  # names the limits of the whole application

_log = logging.getLogger("headgate")


class LimitSettings(TypedDict, total=False):
    """The settings of an application's limits beside its rulebook and engine.

    limits            limits in code for all requests of the application, counted together
    user              a function of the request that returns the user's name, or None
    attributes        a function of the request that returns other attributes: {"plan": "pro"}
    exempt            path patterns that are not limited: "/health", "/static/**"
    trusted_proxies   networks whose X-Forwarded-For names the client; "unix" for a socket file
    forwarded_field   the field that they write: "x-forwarded-for" or "forwarded"
    headers           the format of the header fields, if not that of the rulebook
    strict            whether a rule that matches no route is an error
    clock, prefix     as of a limiter
    """

    limits: Sequence[CodeLimit]
    user: RequestFunction | None
    attributes: RequestFunction | None
    exempt: Iterable[str]
    trusted_proxies: Iterable[str]
    forwarded_field: ForwardingField
    headers: Headers | None
    strict: bool
    clock: Clock | None
    prefix: str


class RequestFlows(Generic[L]):
    """The base of RequestLimits and AsyncRequestLimits: settings, the names of limits, and the flows."""

    def __init__(
        self,
        rules: Rules | None = None,
        engine: Any = "memory://",
        *,
        limits: Sequence[CodeLimit] = (),
        user: RequestFunction | None = None,
        attributes: RequestFunction | None = None,
        exempt: Iterable[str] = (),
        trusted_proxies: Iterable[str] = (),
        forwarded_field: ForwardingField = X_FORWARDED_FOR,
        headers: Headers | None = None,
        strict: bool = False,
        clock: Clock | None = None,
        prefix: str = "hg",
    ) -> None:
        self.rules: Rules = Rulebook() if rules is None else rules
        self.engine_or_url: Any = engine
        self.user: RequestFunction | None = user
        self.attributes: RequestFunction | None = attributes
        self.proxies: Proxies = Proxies(trusted_proxies, forwarded_field)
        self.strict: bool = strict
        self.clock: Clock | None = clock
        self.prefix: str = prefix
        self._form = headers
        self._exempt = [PathPattern(text) for text in exempt]
        self._alarm = SharedAddressAlarm()
        self._lock = Lock()
        self._limiter: L | None = None
        self._code_rules: dict[str, tuple[Rule, str]] = {}
        self._routes: dict[tuple[str, tuple[int, ...]], tuple[BoundLimit, ...]] = {}
        self.bound_routes: dict[Any, Any] = {}  # a framework's own cache of what it has bound
        self._readers: dict[frozenset[str], PartsReader] = {}
        self._undecided, self._reported_at = 0, -REPORT_EVERY_S
        self._book: Rulebook | None = None
        self._book_reader = self._reader(())
        self.app_limits: tuple[BoundLimit, ...] = self.bind(APP, tuple(limits))

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
        whole_app = RouteInfo("/{path...}", (), [bound.limit for bound in self.app_limits])
        self.check_code_limits([*routes, whole_app])
        for route in routes:
            self.bind(route.name, route.limits)
        check_rulebook(self.limiter.rulebook, routes, strict=self.strict)

    def check_code_limits(self, routes: Sequence[RouteInfo]) -> None:
        """Raises InvalidRule for limits in code of these routes that can never match. Opens no engine."""
        check_code_limits(routes, self._supplies)

    def _supplies(self, attribute: str) -> bool:
        """Whether the application may have a value for this attribute."""
        return self.attributes is not None or (attribute == "user" and self.user is not None)

    @property
    def decides_by_route(self) -> bool:
        """Whether a rule of the rulebook uses the route's template or parameters."""
        names = self._reader_of_book(self.limiter.rulebook).names
        return "route" in names or any(name.startswith(ROUTE_PREFIX) for name in names)

    def exempt_path(self, pattern: str) -> None:
        """Exempts the requests of a path pattern, such as /health or /static/**, from all limits."""
        self._exempt.append(PathPattern(pattern))

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
            matches: list[Match] = []
            if with_rules and compiled.book.rules:
                values = yield from self._values(record, self._reader_of_book(compiled.book))
                matches += compiled.match(values, None)
            for bound in limits:
                match = yield from self._match(record, bound)
                if match is not None:
                    matches.append(match)
            if record.form is None:
                record.form = self._form or compiled.book.headers
            if not matches:
                return None
            plan = compiled.plan_matches(matches)
            decision: RuleDecision = yield partial(limiter.decide_plan, plan)
        except (EngineUnavailable, CorruptState) as error:
            self._report_outage(error)
            yield from self._give_back(record)
            record.answer = refusal_body.undecided_response(record.parts.header("accept"))
            return record.answer
        if not decision.allowed:
            yield from self._give_back(record)
            record.decisions = [decision]
            record.answer = refusal_body.refusal_response(decision, record.parts.header("accept"))
            return record.answer
        record.decisions.append(decision)
        for outcome in decision.outcomes:
            if outcome is not None and outcome[DELAY_US]:
                yield from limiter_flows.serve(decision, self._sleep_us)
                break
        if not plan.is_single_request and _holds_slots(decision):
            yield from self._hold(record, decision)
        for bound in limits:
            if bound.limit.refunds is not None and any(rule == bound.rule.name for rule, _ in decision.labels):
                record.refunds.append((bound.limit.refunds, decision, bound.rule.name))
        return None

    def _report_outage(self, error: Exception) -> None:
        """Logs that a request could not be decided: at once, and then every REPORT_EVERY_S at most."""
        self._undecided += 1
        if monotonic() - self._reported_at >= REPORT_EVERY_S:
            _log.error(
                "headgate: requests could not be decided and were answered 503 (%d since the last report): %s",
                self._undecided,
                error,
            )
            self._undecided, self._reported_at = 0, monotonic()

    def _hold(self, record: RequestRecord, decision: RuleDecision) -> Flow[None]:
        """Holds the slots of a decision until the request ends."""
        hold = held_slots.hold(decision)
        if hold is not None:
            holding = self._holding(decision, hold)
            yield partial(self._enter, holding)
            record.holdings.append(holding)

    def _match(self, record: RequestRecord, bound: BoundLimit) -> Flow[Any]:
        limit, native = bound.limit, record.parts.native
        if limit.exempt_function is not None and (yield partial(limit.exempt_function, native)):
            return None
        values = yield from self._values(record, self._reader(limit.uses))
        if limit.key_function is not None:
            values[KEY_ATTRIBUTE] = yield partial(limit.key_function, native)
        cost = 1
        if limit.cost_function is not None:
            cost = yield partial(limit.cost_function, native)
            if isinstance(cost, bool) or not isinstance(cost, int) or cost < 0:
                raise InvalidCharge(f"{limit.location}: A cost is a whole number of at least 0, not {cost!r}.")
        return bound.match(values, cost)

    def _values(self, record: RequestRecord, reader: PartsReader) -> Flow[Attributes]:
        """Reads the attributes of a request; asks the application for those that only it knows."""
        values = reader(record.parts)
        unknown = reader.unknown
        if not unknown:
            return values
        if "user" in unknown and self.user is not None:
            if record.user is None:
                user = yield partial(self.user, record.parts.native)
                record.user = (user,)
            values["user"] = record.user[0]
        if self.attributes is not None:
            if record.attributes is None:
                record.attributes = (yield partial(self.attributes, record.parts.native)) or {}
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

    def _give_back(self, record: RequestRecord) -> Flow[None]:
        """Gives back what earlier stages charged."""
        earlier, record.decisions, record.refunds = record.decisions, [], []
        yield from self._release(record)
        for decision in earlier:
            if not (_holds_slots(decision) and len(decision.counter_decisions) == 1):
                with suppress(EngineUnavailable, CorruptState):  # the refusal matters more; they expire
                    yield partial(self.limiter.refund, decision)

    def _release(self, record: RequestRecord) -> Flow[None]:
        holdings, record.holdings = record.holdings, []
        for holding in holdings:
            try:
                yield partial(self._leave, holding)
            except (LeaseLost, EngineUnavailable, CorruptState) as error:
                _log.warning("headgate: %s", error)

    def _finish(self, record: RequestRecord, status: int, response: Any) -> Flow[None]:
        """Refunds by the response, and releases slots. (A cost that is known only now would be settled here.)"""
        refunds, record.refunds = record.refunds, []
        yield from self._release(record)
        for applies, decision, rule in refunds:
            if (yield partial(applies, status, response)):
                try:
                    yield partial(self.limiter.refund, decision.only({rule}))
                except (EngineUnavailable, CorruptState) as error:
                    _log.warning('headgate: a charge of "%s" could not be refunded: %s', rule, error)

    # What differs between sync and async:
    def _sleep_us(self, duration_us: int) -> Any:
        raise NotImplementedError

    def _holding(self, decision: RuleDecision, hold: Any) -> Any:
        raise NotImplementedError

    def _enter(self, holding: Any) -> Any:
        raise NotImplementedError

    def _leave(self, holding: Any) -> Any:
        raise NotImplementedError


def _holds_slots(decision: RuleDecision) -> bool:
    return any(isinstance(meter.limit, Slots) for meter, _, _ in decision.charges)
