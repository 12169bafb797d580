"""Throttles of Django REST framework: its rates as they are, decided atomically, and any other limit.

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["headgate.integrations.drf.AnonRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "100/day", "uploads": "5/s burst 20"},
    }

    AnonRateThrottle, UserRateThrottle, ScopedRateThrottle, SimpleRateThrottle    in place of REST framework's own
    throttle("5/s burst 20")                                                      a class for throttle_classes

A rate of REST framework (100/day, 10/min) means what it means there: so many requests within any such period. A
unit that is read by its first letter there and is another word (3/month) is refused. Every other text is a limit
of headgate. HEADGATE names the engine, as for headgate.integrations.django.

All throttles of a view that are headgate's are one decision: if one refuses, none has counted the request; and two
requests at the same instant never take the same place. wait() is exact. The responses of throttled views have the
header fields: added by HeadgateMiddleware, or without it by the view. Refunds and slots need the middleware.

An address is found by HEADGATE's trusted_proxies. NUM_PROXIES is obeyed if it is set; unset, REST framework trusts
whatever X-Forwarded-For says, and headgate does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from threading import Lock
from typing import Any, ClassVar, Unpack

from headgate.errors import InvalidRule
from headgate.extras import require
from headgate.integrations.code_limit import (
    BoundLimit,
    CodeLimit,
    Key,
    LimitText,
    Refund,
    RequestFunction,
    RuleFields,
)

require("headgate.integrations.drf", "drf", "django", "rest_framework")

from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.urls import get_resolver  # noqa: E402
from rest_framework.exceptions import APIException  # noqa: E402
from rest_framework.settings import api_settings  # noqa: E402
from rest_framework.throttling import BaseThrottle  # noqa: E402

from headgate.integrations.django import ViewLimit, client_address, user_or_address  # noqa: E402
from headgate.integrations.django.http_requests import http_request, walk_routes  # noqa: E402
from headgate.integrations.django.request_state import RequestState  # noqa: E402
from headgate.integrations.request_flows import UNDECIDED_RETRY_S  # noqa: E402
from headgate.rules.ip_networks import network_of  # noqa: E402

__all__ = [
    "AnonRateThrottle", "EngineDown", "LimitThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "throttle",
    "UserRateThrottle",
]  # fmt: skip

MAX_LOG = 1_000_000  # above, a sliding window counts
_KEYS, _OUTCOMES = "_headgate_throttle_keys", "_headgate_throttle_outcomes"

_rate = re.compile(r"\s*([0-9]+)\s*/\s*([a-z]+)\s*")
_UNITS = {"s": "s", "m": "minute", "h": "hour", "d": "day"}  # REST framework reads the first letter
_WORDS = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "minute": ("m", "min", "mins", "minute", "minutes"),
    "hour": ("h", "hr", "hrs", "hour", "hours"),
    "day": ("d", "day", "days"),
}
_not_in_names = re.compile(r"[^A-Za-z0-9_.-]")

_lock = Lock()
_made: dict[tuple[str, str], CodeLimit] = {}


class EngineDown(APIException):
    """Raised if the engine does not answer, and no fallback decides: the response is a 503."""

    status_code = 503
    wait = UNDECIDED_RETRY_S  # REST framework sends it as Retry-After
    default_detail: str = "This service cannot decide about requests at the moment."
    default_code = "service_unavailable"


class LimitThrottle(BaseThrottle):
    """A throttle by headgate: it decides together with all others of its view. `throttle` makes such classes."""

    limits: ClassVar[Sequence[CodeLimit]] = ()
    _wait: float | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decides all throttles of the view, unless that is done; returns whether this one allows the request."""
        outcomes = vars(http_request(request)).setdefault(_OUTCOMES, {})
        key = id(view), type(self)
        if key not in outcomes:
            throttles = {type(each): each for each in view.get_throttles() if isinstance(each, LimitThrottle)}
            _decide(request, view, {**throttles, type(self): self}, outcomes)
        allowed, self._wait = outcomes[key]
        return bool(allowed)

    def wait(self) -> float | None:
        """Returns the seconds after which the refused request would pass; None if no wait can help."""
        return self._wait

    def bind(self, state: RequestState, request: Any, view: Any) -> Sequence[BoundLimit]:
        """Returns the limits of this throttle for a request."""
        return [state.bind_throttle(each) for each in self.limits]


class SimpleRateThrottle(LimitThrottle):
    """A rate by scope, or by `rate`; override get_cache_key to say what is counted, as in REST framework."""

    cache_format = "throttle_%(scope)s_%(ident)s"
    scope: str | None = None
    rate: str | None = None
    THROTTLE_RATES: ClassVar[Mapping[str, str | None] | None] = None  # REST_FRAMEWORK's, unless set

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Returns what the request is counted under; None if it is not limited."""
        raise NotImplementedError(f"{type(self).__name__} lacks get_cache_key(request, view).")

    def get_rate(self) -> str | None:
        """Returns the rate of the scope."""
        if not self.scope:
            raise ImproperlyConfigured(f"{type(self).__name__} has neither scope nor rate: set one of them.")
        rates: Any = api_settings.DEFAULT_THROTTLE_RATES if self.THROTTLE_RATES is None else self.THROTTLE_RATES
        if self.scope not in rates:
            similar = get_close_matches(self.scope, rates, 1, 0.5)
            hint = f'Did you mean "{similar[0]}"?' if similar else f"Known: {', '.join(rates) or 'none'}."
            raise ImproperlyConfigured(f'No default throttle rate set for the scope "{self.scope}". {hint}')
        rate: str | None = rates[self.scope]
        return rate

    def get_ident(self, request: Any) -> str:
        """Returns the client's address, IPv6 by its /64."""
        address = super().get_ident(request) if api_settings.NUM_PROXIES is not None else client_address(request)
        return network_of(address, 32, 64) or address or ""

    def bind(self, state: RequestState, request: Any, view: Any) -> Sequence[BoundLimit]:
        """Returns the limit of the rate, if it applies to the request."""
        rate = self.rate or self.get_rate()
        key = None if rate is None else self.get_cache_key(request, view)
        if rate is None or key is None:
            return ()
        name = f"throttle_{_not_in_names.sub('-', self.scope or type(self).__name__)}"
        if self.scope and (self.rate or self.THROTTLE_RATES is not None):
            name = f"{name}.{type(self).__name__}"  # another rate than that of the scope
        name = name[:64]
        vars(http_request(request)).setdefault(_KEYS, {})[name] = key
        return [state.bind_throttle(_rate_limit(name, rate))]

    def _user_key(self, request: Any) -> str:
        user = request.user
        is_logged_in = user is not None and user.is_authenticated
        return self.cache_format % {
            "scope": self.scope,
            "ident": user.pk if is_logged_in else self.get_ident(request),
        }


class AnonRateThrottle(SimpleRateThrottle):
    """Limits requests without a user, by address."""

    scope: str | None = "anon"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Returns the address; None for a user who is logged in."""
        return None if request.user and request.user.is_authenticated else self._user_key(request)


class UserRateThrottle(SimpleRateThrottle):
    """Limits the requests of a user, or else of an address."""

    scope: str | None = "user"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Returns the user's primary key, or the address."""
        return self._user_key(request)


class ScopedRateThrottle(SimpleRateThrottle):
    """Limits the views that have a throttle_scope, by user or else by address; each scope by itself."""

    scope: str | None
    scope_attr = "throttle_scope"

    def bind(self, state: RequestState, request: Any, view: Any) -> Sequence[BoundLimit]:
        """Returns the limit of the view's scope, if it has one."""
        self.scope = getattr(view, self.scope_attr, None)
        return super().bind(state, request, view) if self.scope else ()

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Returns the user's primary key, or the address."""
        return self._user_key(request)


def throttle(
    limit: LimitText,
    key: Key = user_or_address,
    *,
    cost: int | str | RequestFunction | None = None,
    name: str | None = None,
    exempt: RequestFunction | Mapping[str, Any] | None = None,
    refund: Refund | None = None,
    cost_after: RequestFunction | None = None,
    **fields: Unpack[RuleFields],
) -> type[LimitThrottle]:
    """Makes a throttle class of any limit; CodeLimit describes the arguments. Functions receive the Request.

    Without a name each view is counted by itself; with a name, all views that use it are counted together.
    """
    made = ViewLimit(
        limit, key, cost=cost, name=name, exempt=exempt, refund=refund, cost_after=cost_after, **fields
    )
    return type("LimitThrottle", (LimitThrottle,), {"limits": (made,), "__doc__": f"Limits to {made.text}."})


def _decide(
    request: Any,
    view: Any,
    throttles: Mapping[type, LimitThrottle],
    outcomes: dict[Any, tuple[bool, float | None]],
) -> None:
    """Decides all throttles of a view at once, and notes the outcome of each."""
    alone = not RequestState.begun(request)
    state = RequestState.of(request)
    state.record.sees_end = state.record.sees_end and not alone
    bound = {kind: list(each.bind(state, request, view)) for kind, each in throttles.items()}
    together = list({each.rule.name: each for limits in bound.values() for each in limits}.values())
    allowed = state.decide(together, with_rules=False) if together else True
    record = state.record
    if record.answer is not None and record.decision is None:
        raise EngineDown
    if alone and (record.changes_counts or record.calls):
        raise ImproperlyConfigured(
            "A throttle with refund=, cost_after=, slots or an adaptive limit needs HeadgateMiddleware in "
            "MIDDLEWARE: it sees the response end."
        )
    if alone:
        view.headers.update(record.fields())
    verdicts = {} if allowed or record.decision is None else _refusals(record.decision)
    for kind, limits in bound.items():
        waits = [verdicts[each.rule.name] for each in limits if each.rule.name in verdicts]
        wait = None if not waits or None in waits else max(each for each in waits if each is not None)
        outcomes[id(view), kind] = not waits, wait


def _refusals(decision: Any) -> dict[str, float | None]:
    """Returns the rules that refused, with the seconds to wait: the longest of a rule's limits, None if never."""
    refused: dict[str, float | None] = {}
    for verdict in decision.verdicts:
        if not verdict.allowed and not verdict.shadow_kind:
            wait_us, before = verdict.retry_after_us, refused.get(verdict.rule, 0.0)
            refused[verdict.rule] = None if wait_us is None or before is None else max(before, wait_us / 1_000_000)
    return refused


def _rate_limit(name: str, rate: str) -> CodeLimit:
    """Returns the limit of a rate, made once."""
    made = _made.get((name, rate))
    if made is None:
        key = lambda request: vars(http_request(request))[_KEYS][name]  # noqa: E731
        made = _read_rate(rate, f'The throttle rate "{rate}"', key, name)
        with _lock:
            made = _made.setdefault((name, rate), made)
    return made


def _read_rate(rate: str, subject: str, key: Key = "address", name: str | None = None) -> CodeLimit:
    """Returns the limit of a rate; raises ImproperlyConfigured if it cannot be read."""
    try:
        text = limit_text(rate)
    except InvalidRule as error:
        raise ImproperlyConfigured(f"{subject}: {error}") from error
    try:
        return CodeLimit(text, key, name=name, missing="one")  # as there, "" is a key like any other
    except InvalidRule as error:  # which begins with the place in the code
        raise ImproperlyConfigured(f"{subject}: {str(error).partition(': ')[2]}") from error


def limit_text(rate: str) -> str:
    """Returns a rate as a limit: REST framework's own rates as a log, so that they mean what they mean there.

    >>> limit_text("100/day"), limit_text("10/min"), limit_text("5/s burst 20")
    ('100/day log', '10/minute log', '5/s burst 20')
    """
    match = _rate.fullmatch(rate)
    if match is None or match[2][0] not in _UNITS:
        return rate
    amount, word, unit = int(match[1]), match[2], _UNITS[match[2][0]]
    if word not in _WORDS[unit]:
        raise InvalidRule(
            f'"{rate}" could be misread: REST framework looks only at the first letter of "{word}", which is '
            f"{amount}/{unit}. Write that, or a length of time such as {amount}/30d."
        )
    return f"{amount}/{unit} {'log' if amount <= MAX_LOG else 'sliding'}"


def check_rates() -> None:
    """Raises ImproperlyConfigured for a default rate that cannot be read."""
    for scope, rate in api_settings.DEFAULT_THROTTLE_RATES.items():
        if rate is not None:
            _read_rate(str(rate), f'REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]["{scope}"]')


def find_mistakes() -> list[str]:
    """Returns the mistakes in headgate's throttles of all views, and in default rates if there are any."""
    mistakes: list[str] = []
    uses_rates = False
    for template, view in walk_routes(get_resolver().url_patterns):
        view_class, options = getattr(view, "cls", None), getattr(view, "initkwargs", {})
        for each in options.get("throttle_classes", getattr(view_class, "throttle_classes", ())):
            if isinstance(each, type) and issubclass(each, SimpleRateThrottle):
                uses_rates = True
                scope = options.get("throttle_scope", getattr(view_class, "throttle_scope", None))
                mistakes += [
                    f"{template}: {mistake}" for mistake in _mistakes_of(partial(_check_class, each, scope))
                ]
    return list(dict.fromkeys([*(_mistakes_of(check_rates) if uses_rates else ()), *mistakes]))


def _check_class(throttle_class: type[SimpleRateThrottle], view_scope: str | None) -> None:
    if throttle_class.get_rate is not SimpleRateThrottle.get_rate:
        return  # it may need a request
    made = throttle_class()
    if isinstance(made, ScopedRateThrottle):
        made.scope = view_scope
        if not view_scope:
            return
    rate = made.rate or made.get_rate()
    if rate is not None:
        _read_rate(rate, f'The throttle rate "{rate}"')


def _mistakes_of(check: Callable[[], None]) -> list[str]:
    try:
        check()
    except ImproperlyConfigured as error:
        return [str(error)]
    return []
