"""The settings of an application's limits, and their checks when they are given, not at the first request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypedDict

from headgate.clock import Clock
from headgate.errors import InvalidRule, InvalidSetting
from headgate.http.client_ip import ForwardingField
from headgate.integrations.code_limit import CodeLimit, RequestFunction, misfitting_parameters
from headgate.observer import Observer, Observers
from headgate.rules.rule import HEADERS, Headers, adaptive_limit_of


class LimitSettings(TypedDict, total=False):
    """The settings of an application's limits, other than its rulebook and engine.

    limits            limits in code for all requests of the application, counted together
    user              a function of the request that returns the user's name, or None
    attributes        a function of the request that returns other attributes: {"plan": "pro"}
    exempt            path patterns that are not limited: "/health", "/static/**"
    trusted_proxies   networks whose X-Forwarded-For names the client; "unix" for a socket file
    forwarded_field   the field that they write: "x-forwarded-for" or "forwarded"
    headers           the format of the header fields, if not that of the rulebook
    strict            whether a rule that matches no route is an error
    observers         receive every decision, and the status of its response: [DecisionLog("decisions.jsonl")]
    clock, prefix     as of a limiter
    """

    limits: Sequence[CodeLimit | str]
    user: RequestFunction | None
    attributes: RequestFunction | None
    exempt: Iterable[str]
    trusted_proxies: Iterable[str]
    forwarded_field: ForwardingField
    headers: Headers | None
    strict: bool
    observers: Sequence[Observer]
    clock: Clock | None
    prefix: str


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises InvalidSetting for a value that only a request would find to be wrong."""
    headers = settings.get("headers")
    if headers is not None and headers not in HEADERS:
        similar = get_close_matches(str(headers), HEADERS, 1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"write one of {', '.join(map(repr, HEADERS))}."
        raise InvalidSetting(f"headers= cannot be {headers!r}: {hint}")
    for name in ("user", "attributes"):
        if settings.get(name) is not None and not callable(settings[name]):
            raise InvalidSetting(f"{name}= is a function of the request, not {settings[name]!r}.")
        parameters = None if settings.get(name) is None else misfitting_parameters(settings[name])
        if parameters is not None:
            raise InvalidSetting(f"{name}= is a function of the request, and cannot receive it: {parameters}.")
    observers = settings.get("observers", ())
    if not isinstance(observers, Sequence) or isinstance(observers, str):
        raise InvalidSetting(f"observers= is a list of headgate.Observer objects, not {observers!r}.")
    Observers(observers)
    if not isinstance(settings.get("strict", False), bool):
        raise InvalidSetting(f"strict= is True or False, not {settings['strict']!r}.")
    prefix = settings.get("prefix", "hg")
    if not isinstance(prefix, str) or not prefix:
        raise InvalidSetting(f"prefix= is a text that keys on the server begin with, not {prefix!r}.")
    if isinstance(settings.get("exempt"), str):
        example = settings["exempt"] if settings["exempt"].startswith("/") else "/health"
        raise InvalidSetting(f'exempt= is a list of path patterns, such as ["{example}"], not a text.')


def read_limits(name: str, limits: Any, make: type[CodeLimit] = CodeLimit) -> tuple[CodeLimit, ...]:
    """Returns limits in code, which may be written as texts such as "5/s"."""
    listed = [limits] if isinstance(limits, str | CodeLimit) else limits
    if not isinstance(listed, Iterable):
        raise InvalidSetting(f'{name}= is a list of limits, such as [limit("5/s")], not {limits!r}.')
    made = tuple(make(each) if isinstance(each, str) else each for each in listed)
    for each in made:
        if not isinstance(each, CodeLimit):
            raise InvalidSetting(f'{name}= has limits such as limit("5/s") or "5/s", not {each!r}.')
    return made


def read_message_limits(messages: Any) -> tuple[CodeLimit, ...]:
    """Returns the limits of the messages of WebSockets."""
    made = read_limits("messages", messages)
    for each in made:
        if adaptive_limit_of(each.rule) is not None:
            raise InvalidRule(
                f"{each.location}: An adaptive limit learns from how long calls take, and nobody knows when a "
                "message of a WebSocket has been dealt with: write a rate such as 10/s queue 20."
            )
        if each.holds_slots:
            raise InvalidRule(
                f"{each.location}: Slots are held while something lasts, and nobody knows when a message of a "
                "WebSocket has been dealt with: write a rate such as 10/s queue 20."
            )
    return made
