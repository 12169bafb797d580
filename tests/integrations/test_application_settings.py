"""Wrong settings are found when an application is set up, not at its first request."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from flask import Flask

from headgate import ManualClock
from headgate.errors import HeadgateError, InvalidCharge
from headgate.integrations import fastapi, flask
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.request_limits import RequestLimits
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.wsgi import WSGIRateLimitMiddleware


def _wsgi_app(environ: Any, start_response: Any) -> Iterable[bytes]:
    return []


async def _asgi_app(scope: Any, receive: Any, send: Any) -> None:
    return None


SET_UP: dict[str, Callable[..., Any]] = {
    "fastapi": lambda **settings: fastapi.rate_limits(FastAPI(), **settings),
    "flask": lambda **settings: flask.RateLimiter(Flask("app"), **settings),
    "asgi": lambda **settings: RateLimitMiddleware(_asgi_app, **settings),
    "wsgi": lambda **settings: WSGIRateLimitMiddleware(_wsgi_app, **settings),
}


@pytest.mark.parametrize("framework", SET_UP)
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"headers": "legcy"}, "headers= cannot be 'legcy': did you mean 'legacy'?"),
        ({"headers": True}, "headers= cannot be True: write one of 'draft-11', 'legacy'"),
        ({"exempt": "/health"}, 'exempt= is a list of path patterns, such as ["/health"], not a text.'),
        ({"user": "ann"}, "user= is a function of the request, not 'ann'."),
        ({"user": lambda: "ann"}, "user= is a function of the request, and cannot receive it: ()."),
        ({"attributes": {"plan": "pro"}}, "attributes= is a function of the request, not {'plan': 'pro'}."),
        ({"limits": [5]}, 'limits= has limits such as limit("5/s") or "5/s", not 5.'),
        ({"limits": 5}, 'limits= is a list of limits, such as [limit("5/s")], not 5.'),
        ({"limits": ["5/sec0nd"]}, '"5/sec0nd" is not a limit.'),
        ({"rules": "nowhere.yaml"}, "nowhere.yaml cannot be read: No such file or directory."),
        ({"rules": {"rules": [{"name": "a"}]}}, 'rule "a": '),
        ({"rules": 5}, "Rules are a Rulebook, a mapping, the name of a file"),
        ({"engine": "reddis://localhost"}, "reddis"),
        ({"engine": None}, "An engine is a URL such as memory:// or redis://host:6379/0"),
        ({"engine": "redis://localhost?fallbck=allow"}, "fallbck"),
        ({"strict": "yes"}, "strict= is True or False, not 'yes'."),
        ({"prefix": 5}, "prefix= is a text that keys on the server begin with, not 5."),
        ({"clock": 5}, "A clock has now_us, sleep_us and asleep_us, as ManualClock() has; not 5."),
        ({"trusted_proxies": "10.0.0.0/8"}, "Trusted proxies are a list of networks"),
        ({"limts": []}, "limts= is not a setting of an application's limits. Did you mean limits=?"),
    ],
)
def test_a_wrong_setting_is_a_sentence_at_start(framework: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HeadgateError) as caught:
        SET_UP[framework](**settings)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("framework", SET_UP)
@pytest.mark.parametrize("limits", [["5/s"], "5/s", [CodeLimit("5/s")], CodeLimit("5/s")])
def test_limits_may_be_texts(framework: str, limits: Any) -> None:
    SET_UP[framework](limits=limits)


@pytest.mark.parametrize(
    ("framework", "name", "intended"),
    [("fastapi", "message", "messages"), ("asgi", "message", "messages"), ("flask", "default", "default_limits")],
)
def test_settings_of_one_framework_are_valid_there(framework: str, name: str, intended: str) -> None:
    with pytest.raises(HeadgateError, match=f"Did you mean {intended}=?"):
        SET_UP[framework](**{name: []})
    SET_UP[framework](**{intended: ["5/s"]})


@pytest.mark.parametrize(("missing", "statuses"), [("one", [None, 429]), ("deny", [429, 429])])
def test_an_empty_key_exempts_nobody(missing: Any, statuses: list[int | None]) -> None:
    parts = RequestParts("GET", "/", "", [], "192.0.2.7", None)
    limits = RequestLimits(limits=[CodeLimit("1/minute", key=lambda request: "")], clock=ManualClock())
    with pytest.raises(InvalidCharge, match='The key of a request is "", which would exempt it'):
        limits.decide(limits.begin(parts), limits.app_limits)
    explicit = CodeLimit("1/minute", key=lambda request: "", missing=missing)
    limits = RequestLimits(limits=[explicit], clock=ManualClock())
    answers = [limits.decide(limits.begin(parts), limits.app_limits) for _ in range(2)]
    assert [answer and answer.status for answer in answers] == statuses


@pytest.mark.parametrize("key", ["", [], ["address", ""], 5])
def test_an_empty_key_is_an_error_and_not_one_counter_of_all_callers(key: Any) -> None:
    with pytest.raises(HeadgateError, match=r"A key is the name of an attribute, .* None for one counter"):
        CodeLimit("5/s", key)


def test_messages_of_websockets_hold_no_slots() -> None:
    with pytest.raises(
        HeadgateError, match=r"test_application_settings.py:\d+: Slots are held while something lasts"
    ):
        RateLimitMiddleware(_asgi_app, messages=[CodeLimit("3 slots")])


def test_the_keywords_of_other_limiters_are_recognized() -> None:
    keywords: Any = {"key_func": lambda request: "ann"}
    with pytest.raises(HeadgateError, match=r"key_func= is not a setting of a limit in code. Did you mean key=\?"):
        CodeLimit("5/s", **keywords)


def test_a_limit_is_named_by_a_text() -> None:
    with pytest.raises(HeadgateError, match=r"The name of a limit is a text, not 5\."):
        CodeLimit("5/s", name=5)  # type: ignore[arg-type]


def test_what_is_no_application_is_named() -> None:
    with pytest.raises(HeadgateError, match=r"limits a FastAPI application, not .* For a router, write APIRouter"):
        fastapi.rate_limits(APIRouter())  # type: ignore[arg-type]
    with pytest.raises(HeadgateError, match=r"RateLimiter\(app\) limits a Flask application, not 'shop'"):
        flask.RateLimiter("shop")  # type: ignore[arg-type]
