"""Throttles of Django REST framework through real servers: its rates, waits, fields and races."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headgate import Limiter, ManualClock
from tests.integrations.django_project import project
from tests.integrations.django_project.serving import serve_project
from tests.servers import RedisServer

# isort: split
from django.contrib.auth.models import AnonymousUser
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.test import RequestFactory, override_settings
from django.urls import path
from rest_framework import throttling
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from headgate.integrations import drf
from tests.integrations.django_project import api

WITHOUT_MIDDLEWARE = [each for each in project.MIDDLEWARE if each != project.HEADGATE]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["wsgi", "asgi"])
def client(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[httpx.Client]:
    with serve_project(request.param, {"clock": clock}) as client:
        yield client


def statuses(client: httpx.Client, *paths: str, **headers: str) -> list[int]:
    return [client.get(f"/api/{path}", headers=headers).status_code for path in paths]


def test_default_rates_are_read_as_they_are(client: httpx.Client) -> None:
    assert statuses(client, *["anon"] * 3) == [200, 200, 429]
    assert statuses(client, *["anon"] * 3, **{"X-User": "5"}) == [200] * 3, "users are not anonymous"
    assert statuses(client, *["user"] * 4, **{"X-User": "5"}) == [200, 200, 200, 429]
    assert statuses(client, "user", **{"X-User": "6"}) == [200]
    assert statuses(client, *["user"] * 4) == [200, 200, 200, 429], "those without a user by address"
    assert statuses(client, *["uploads"] * 3) == [200, 200, 429], "a limit in headgate's words"
    assert statuses(client, *["unscoped"] * 4) == [200] * 4
    assert statuses(client, *["tenant?tenant=a"] * 3, "tenant?tenant=b") == [200, 200, 429, 200]
    assert statuses(client, *["tenant"] * 4) == [200] * 4, "no key, no limit"
    assert statuses(client, *["tenant?tenant="] * 3) == [200, 200, 429], "an empty key is one"


def test_the_wait_is_exact(client: httpx.Client, clock: ManualClock) -> None:
    statuses(client, "anon")
    clock.advance(20.5)
    statuses(client, "anon")
    refused = client.get("/api/anon")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "40")
    assert refused.json()["detail"] == "Request was throttled. Expected available in 40 seconds."
    clock.advance(39.499999)
    assert statuses(client, "anon") == [429]
    clock.advance(0.000001)
    assert statuses(client, "anon") == [200]


@pytest.mark.parametrize("middleware", [project.MIDDLEWARE, WITHOUT_MIDDLEWARE], ids=["with", "without"])
def test_every_response_has_the_fields(middleware: list[str], clock: ManualClock) -> None:
    with serve_project("wsgi", {"clock": clock}, MIDDLEWARE=middleware) as client:
        answers = [client.get(f"/api/{path}") for path in ("anon", "anon?missing", "anon")]
    assert [each.status_code for each in answers] == [200, 404, 429]
    assert [each.headers["ratelimit"] for each in answers] == [
        '"throttle_anon";r=1;t=60', '"throttle_anon";r=0;t=60', '"throttle_anon";r=0;t=60',
    ]  # fmt: skip
    assert [each.headers.get("retry-after") for each in answers] == [None, None, "60"]


def test_all_throttles_of_a_view_count_or_none(client: httpx.Client) -> None:
    assert statuses(client, *["two"] * 5) == [200, 429, 429, 429, 429]
    assert statuses(client, "two", **{"X-User": "1"}) == [200], "refused requests did not use up the second"
    last = client.get("/api/two", headers={"X-User": "2"})
    assert last.headers["ratelimit"] == '"/api/two 1/minute";r=0;t=60, "/api/two 3/minute";r=0;t=60'


def test_successes_are_refunded(client: httpx.Client) -> None:
    paths = ("failures", "failures", "failures?missing", "failures")
    assert statuses(client, *paths) == [200, 200, 404, 429]


def test_a_refund_without_the_middleware_is_a_mistake() -> None:
    view = api.FailuresView.as_view()
    request: Any = RequestFactory().get("/")
    request.user = AnonymousUser()
    with override_settings(HEADGATE={}), pytest.raises(ImproperlyConfigured, match="needs HeadgateMiddleware"):
        view(request)


def test_requests_at_the_same_instant_never_pass_together(redis_server: RedisServer) -> None:
    with serve_project("wsgi", {"engine": redis_server.url}) as client, ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: client.get("/api/race").status_code, range(60)))
    assert (statuses.count(200), statuses.count(429)) == (20, 40)


def test_an_engine_that_does_not_answer_is_a_503() -> None:
    with serve_project("wsgi", {"engine": "redis://127.0.0.1:1"}) as client:
        answer = client.get("/api/anon")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json() == {"detail": "This service cannot decide about requests at the moment."}


def test_a_scope_without_a_rate_names_the_nearest() -> None:
    request: Any = RequestFactory().get("/")
    request.user = AnonymousUser()
    with override_settings(HEADGATE={}), pytest.raises(ImproperlyConfigured, match=r'Did you mean "uploads"\?'):
        api.MisspeltView.as_view()(request)


def test_a_rate_that_cannot_be_read_is_an_error_at_start() -> None:
    bad = {"DEFAULT_THROTTLE_RATES": {"anon": "10/fortnight"}}
    sentence = r'DEFAULT_THROTTLE_RATES"\]\["anon"\].*10/fortnight'
    with override_settings(REST_FRAMEWORK=bad), pytest.raises(ImproperlyConfigured, match=sentence):
        drf.check_rates()
    drf.check_rates()


@pytest.mark.parametrize("rate", ["3/month", "3/mo", "3/ms", "3/sprint", "3/hourly", "3/decade"])
def test_a_unit_that_rest_framework_would_misread_is_refused(rate: str) -> None:
    bad = {"DEFAULT_THROTTLE_RATES": {"anon": rate}}
    with override_settings(REST_FRAMEWORK=bad), pytest.raises(ImproperlyConfigured) as caught:
        drf.check_rates()
    unit = {"m": "minute", "s": "s", "h": "hour", "d": "day"}[rate[2]]
    assert f'["anon"]: "{rate}" could be misread' in str(caught.value)
    assert f"which is 3/{unit}. Write that" in str(caught.value)
    assert drf.limit_text("3/week") == "3/week"


def test_manage_py_check_names_mistakes_of_throttles() -> None:
    class MonthlyThrottle(drf.SimpleRateThrottle):
        rate = "3/month"

    class CheckedView(APIView):
        throttle_classes = (MonthlyThrottle, drf.ScopedRateThrottle)
        throttle_scope = "upload"

    class ThrottledUrls:
        urlpatterns = (path("items/<int:pk>", CheckedView.as_view()),)

    bad = {"DEFAULT_THROTTLE_RATES": {"anon": "10/fortnight", "uploads": "5/s"}}
    with override_settings(REST_FRAMEWORK=bad, ROOT_URLCONF=ThrottledUrls):
        messages = [each.msg for each in checks.run_checks() if each.id == "headgate.E004"]
        with pytest.raises(ImproperlyConfigured, match="10/fortnight"):
            WSGIHandler()
    assert len(messages) == 3
    assert messages[0].startswith('REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]["anon"]: limit: "10/fortnight"')
    assert messages[1].startswith('/items/{pk}: The throttle rate "3/month": "3/month" could be misread')
    assert messages[2].endswith('No default throttle rate set for the scope "upload". Did you mean "uploads"?')


def test_rates_of_other_throttles_are_not_ours_to_check() -> None:
    class OtherView(APIView):
        throttle_classes = (throttling.AnonRateThrottle,)

    class OtherUrls:
        urlpatterns = (path("items", OtherView.as_view()),)

    with override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"anon": "3/month"}}, ROOT_URLCONF=OtherUrls):
        assert [each.msg for each in checks.run_checks() if each.id == "headgate.E004"] == []


def test_num_proxies_is_obeyed_and_an_untrusted_field_is_not() -> None:
    request = RequestFactory().get("/", headers={"X-Forwarded-For": "6.6.6.6, 192.0.2.7"})
    throttle = drf.AnonRateThrottle()
    with override_settings(HEADGATE={}):
        assert throttle.get_ident(request) == "127.0.0.1"
    with override_settings(REST_FRAMEWORK={"NUM_PROXIES": 1}):
        assert api_settings.NUM_PROXIES == 1
        assert throttle.get_ident(request) == "192.0.2.7"


@pytest.mark.parametrize("rate", ["1/s", "3/sec", "2/m", "5/min", "4/minute", "9/h", "7/hour", "2/d", "8/day"])
def test_a_rate_decides_what_rest_framework_decides(rate: str) -> None:
    """Replays one arrival pattern on both; REST framework's clock and cache are its own."""
    amount, period = throttling.SimpleRateThrottle.parse_rate(None, rate)  # type: ignore[arg-type]
    assert amount is not None
    assert period is not None
    clock = ManualClock(1_000_000_000_000_000)
    limiter = Limiter(drf.limit_text(rate), clock=clock)
    history: list[float] = []
    for step in (0, 1, 0, 3, 0, 0, 2, 5, 0, 1, 1, 7, 0, 0, 4):
        clock.advance(step * period / 8)
        now = clock.now_us() / 1_000_000
        while history and history[-1] <= now - period:
            history.pop()
        allowed = len(history) < amount
        if allowed:
            history.insert(0, now)
        assert limiter.take("ann").allowed is allowed
