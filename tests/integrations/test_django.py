"""A Django project through real servers: Django's own over WSGI, uvicorn over ASGI; in memory and on Redis."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from asgiref.sync import iscoroutinefunction

from headgate import ManualClock
from tests.integrations.django_project import project
from tests.integrations.django_project.serving import Interface, serve_project
from tests.integrations.server_harness import limit_fields
from tests.servers import RedisServer

# isort: split
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path

from headgate.integrations.django import client_address, limit
from headgate.integrations.django.http_requests import route_template

INTERFACES: tuple[Interface, ...] = ("wsgi", "asgi")


@pytest.fixture(params=INTERFACES)
def interface(request: pytest.FixtureRequest) -> Interface:
    chosen: Interface = request.param
    return chosen


@pytest.fixture(params=["memory", "redis"])
def engine(request: pytest.FixtureRequest, redis_server: RedisServer) -> str:
    return "memory://" if request.param == "memory" else redis_server.url


@pytest.fixture
def client(interface: Interface) -> Iterator[httpx.Client]:
    with serve_project(interface, {"clock": ManualClock()}) as client:
        yield client


def statuses(client: httpx.Client, *paths: str, **headers: str) -> list[int]:
    return [client.get(path, headers=headers).status_code for path in paths]


def test_sync_and_async_views_count_on_every_engine(interface: Interface, engine: str) -> None:
    with serve_project(interface, {"engine": engine}) as client:
        assert statuses(client, *["/address"] * 3) == [200, 200, 429]
        assert statuses(client, *["/header"] * 3) == [200, 200, 429]
        assert statuses(client, *["/whole"] * 3) == [200, 200, 429]
        assert statuses(client, *["/async-whole"] * 3) == [200, 200, 429]


def test_sync_and_async_views_share_the_counts_of_a_name(interface: Interface, engine: str) -> None:
    with serve_project(interface, {"engine": engine}, ROOT_URLCONF=shared_urls()) as client:
        assert statuses(client, "/sync", "/async", "/sync", "/async") == [200, 200, 429, 429]


def shared_urls() -> Any:
    """URLs of a sync and an async view with limits of one name."""

    @limit("2/minute", name="shared")
    def sync_view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("sync")

    @limit("2/minute", name="shared")
    async def async_view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("async")

    class Urls:
        urlpatterns = (path("sync", sync_view), path("async", async_view))

    return Urls


def test_a_view_is_counted_on_all_its_routes(client: httpx.Client) -> None:
    assert statuses(client, "/address", "/v2/address", "/address") == [200, 200, 429]


def test_keys_are_users_fields_functions_and_parameters(client: httpx.Client) -> None:
    assert statuses(client, *["/user"] * 3, **{"X-User": "5"}) == [200, 200, 429]
    assert statuses(client, "/user", **{"X-User": "6"}) == [200]
    assert statuses(client, "/user") == [429], "nobody is logged in, and the limit denies that"
    assert statuses(client, *["/header"] * 3, **{"X-Api-Key": "a"}) == [200, 200, 429]
    assert statuses(client, "/header", **{"X-Api-Key": "b"}) == [200]
    assert statuses(client, *["/function?tenant=a"] * 3, "/function?tenant=b") == [200, 200, 429, 200]
    assert statuses(client, *["/either"] * 3) == [200, 200, 429]
    assert statuses(client, "/either", **{"X-User": "5"}) == [200]
    assert statuses(client, *(f"/shop/items/{pk}" for pk in (1, 1, 2, 3, 4))) == [200, 429, 200, 200, 429]


def test_methods_of_a_class_have_separate_limits(client: httpx.Client) -> None:
    assert statuses(client, *["/methods"] * 3) == [200, 200, 429]
    posted = [client.post("/methods") for _ in range(2)]
    assert [response.status_code for response in posted] == [200, 429]
    assert posted[1].headers["ratelimit"] == '"POST /methods";r=0;t=60'


@pytest.mark.parametrize(
    ("kind", "status"),
    [("json", 200), ("redirect", 302), ("unchanged", 304), ("etag", 304), ("missing", 404), ("fail", 500)],
)
def test_every_response_has_the_fields(client: httpx.Client, kind: str, status: int) -> None:
    response = client.get(f"/outcome/{kind}", headers={"If-None-Match": '"1"'})
    assert response.status_code == status
    assert limit_fields(response) == {
        "ratelimit-policy": '"/outcome/{kind}";q=9;w=60',
        "ratelimit": '"/outcome/{kind}";r=8;t=7',
    }


def test_a_refusal_is_a_problem_a_page_a_sentence_or_the_body_of_the_rule(client: httpx.Client) -> None:
    kinds = {
        "application/json": "application/problem+json",
        "text/html": "text/html; charset=utf-8",
        "*/*": "application/problem+json",
        "text/plain": "text/plain; charset=utf-8",
    }
    statuses(client, *["/address"] * 2)
    for accept, kind in kinds.items():
        refused = client.get("/address", headers={"Accept": accept})
        assert (refused.status_code, refused.headers["content-type"]) == (429, kind)
        assert refused.headers["retry-after"] == "30"
    problem = client.get("/address", headers={"Accept": "application/json"}).json()
    assert problem["violated-policies"] == ["/address"]
    statuses(client, "/own-body")
    refused = client.get("/own-body")
    assert (refused.status_code, refused.text) == (403, "Slow down.")
    assert refused.headers["ratelimit"] == '"/own-body";r=0;t=60'


def test_failures_only_are_counted(client: httpx.Client) -> None:
    statuses = (200, 401, 302, 401, 200, 401, 200)
    answers = [client.post(f"/login?status={status}").status_code for status in statuses]
    assert answers == [200, 401, 302, 401, 200, 401, 429]
    assert limit_fields(client.get("/login")) == {}, "GET is not limited"


def test_a_slot_is_held_until_the_stream_has_ended(client: httpx.Client, interface: Interface) -> None:
    path = "/stream" if interface == "wsgi" else "/async-stream"
    assert [client.get(path).text for _ in range(3)] == ["firstlast"] * 3


async def test_a_stream_that_is_not_read_yet_holds_its_slot() -> None:
    with override_settings(HEADGATE={}):
        first: Any = await AsyncClient().get("/async-stream")
        assert (await AsyncClient().get("/async-stream")).status_code == 429
        assert [part async for part in first.streaming_content] == [b"first", b"last"]
        second: Any = await AsyncClient().get("/async-stream")
        assert second.status_code == 200, "the last byte was there before the slot was free"
        second.close()
        for _ in range(1000):  # it is released by a task
            if (await AsyncClient().get("/async-stream")).status_code == 200:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the slot was not released")


def test_a_stream_has_released_its_slot_with_its_last_byte() -> None:
    with override_settings(HEADGATE={}):
        request: Any = RequestFactory().get("/stream")
        response = WSGIHandler()(request.environ, lambda *start: len)
        assert Client().get("/stream").status_code == 429
        assert b"".join(response) == b"firstlast"  # which the server has sent before it closes the response
        assert Client().get("/stream").status_code == 200
        response.close()


def test_a_file_has_released_its_slot_with_its_last_byte() -> None:
    with override_settings(HEADGATE={}):
        first: Any = Client().get("/file")
        assert Client().get("/file").status_code == 429
        chunks = iter(first.streaming_content)
        assert len(next(chunks)) == int(first["Content-Length"]), "a client needs no more than that"
        assert Client().get("/file").status_code == 200
        first.close()


def test_a_view_may_answer_refusals_itself(client: httpx.Client) -> None:
    first, second = client.get("/unblocked"), client.get("/unblocked")
    assert (first.json(), second.json()) == (
        {"allowed": True, "retry_after": None},
        {"allowed": False, "retry_after": 60.0},
    )
    assert "retry-after" not in second.headers


def test_a_limit_is_checked_inside_of_a_view(client: httpx.Client) -> None:
    assert statuses(client, "/checked", "/checked") == [200, 429]
    assert client.get("/checked-async").json() == {"allowed": True, "retry_after": None}
    assert client.get("/checked-async").json() == {"allowed": False, "retry_after": 60.0}


def test_a_limiter_inside_of_a_view_refuses_with_429(client: httpx.Client) -> None:
    refused = client.get("/limiter")
    assert refused.status_code == 429
    assert refused.headers["ratelimit-policy"] == '"1/s";q=1;w=1'


def test_the_whole_project_is_limited_with_requests_that_reach_no_view(interface: Interface) -> None:
    headgate = {"limits": ["6/minute"], "clock": ManualClock()}
    with serve_project(interface, headgate) as client:
        paths = "free nothing slash health address outcome/fail free nothing slash"
        answers = [client.get(f"/{path}") for path in paths.split()]
    assert [each.status_code for each in answers] == [200, 404, 301, 200, 200, 500, 200, 429, 429]
    left = [re.search(r'"app";r=(\d)', each.headers.get("ratelimit", "")) for each in answers]
    assert [match and match[1] for match in left] == ["5", "4", "3", None, "2", "1", "0", "0", "0"]
    assert "location" not in answers[-1].headers


def test_a_rulebook_sees_routes_users_and_parameters(interface: Interface, engine: str) -> None:
    rules = [
        {
            "name": "items",
            "limit": "1/minute",
            "when": {"route": "/shop/items/{pk}"},
            "key": ["user", "param.pk"],
            "missing": "skip",
        },
        {"name": "slow", "limit": "1/minute", "when": {"path": "/free"}, "key": "address"},
    ]
    with serve_project(interface, {"rules": {"rules": rules}, "engine": engine}) as client:
        items = ("/shop/items/1", "/shop/items/2", "/shop/items/1")
        assert statuses(client, *items, **{"X-User": "5"}) == [200, 200, 429]
        assert statuses(client, "/free", "/free", "/outcome/json") == [200, 429, 200]


def test_a_refused_view_gives_the_projects_charge_back(interface: Interface) -> None:
    with serve_project(interface, {"limits": ["10/minute"], "clock": ManualClock()}) as client:
        statuses(client, *["/methods"] * 5)
        assert client.get("/free").headers["ratelimit"] == '"app";r=7;t=18'


def test_a_project_may_write_its_refusals(interface: Interface) -> None:
    def sorry(request: HttpRequest, record: Any) -> HttpResponse:
        return JsonResponse({"wait": record.retry_after}, status=420)

    async def sorry_async(request: HttpRequest, record: Any) -> HttpResponse:
        return sorry(request, record)

    for refusal in (sorry, sorry_async):
        with serve_project(interface, {"refusal": refusal, "clock": ManualClock()}) as client:
            for path in ("/address", "/header"):
                answers = [client.get(path) for _ in range(3)]
                assert (answers[2].status_code, answers[2].json()) == (420, {"wait": 30.0})
                assert answers[2].headers["retry-after"] == "30"


def test_user_and_attributes_may_be_either_kind_of_function(interface: Interface) -> None:
    async def user(request: HttpRequest) -> str | None:
        return request.headers.get("X-Name")

    def attributes(request: HttpRequest) -> dict[str, str]:
        return {"plan": request.headers.get("X-Plan", "free")}

    tiers = {"by": "plan", "cases": {"pro": "2/minute"}, "otherwise": "1/minute"}
    headgate = {
        "user": user,
        "attributes": attributes,
        "limits": [{"limit": tiers, "key": "user", "missing": "skip"}],
    }
    with serve_project(interface, headgate) as client:
        assert statuses(client, *["/free"] * 2, **{"X-Name": "ann"}) == [200, 429]
        assert statuses(client, *["/free"] * 3, **{"X-Name": "bob", "X-Plan": "pro"}) == [200, 200, 429]


def test_addresses_come_from_trusted_proxies_only(interface: Interface) -> None:
    for proxies, expected in (([], [200, 200, 429]), (["127.0.0.0/8"], [200, 200, 200])):
        with serve_project(interface, {"trusted_proxies": proxies}) as client:
            sent = [{"X-Forwarded-For": f"192.0.2.{number}"} for number in range(3)]
            assert [client.get("/address", headers=each).status_code for each in sent] == expected


def test_limits_can_be_switched_off_and_paths_exempt(interface: Interface) -> None:
    with serve_project(interface, {"enabled": False, "limits": ["1/day"]}) as client:
        assert statuses(client, *["/address"] * 4) == [200] * 4
    with serve_project(interface, {"exempt": ["/address"], "limits": ["1/day"]}) as client:
        assert statuses(client, *["/address"] * 4, "/free", "/free") == [200] * 5 + [429]


def test_without_the_middleware_a_view_has_its_limits_and_fields(interface: Interface) -> None:
    middleware = [each for each in project.MIDDLEWARE if each != project.HEADGATE]
    with serve_project(interface, {"clock": ManualClock()}, MIDDLEWARE=middleware) as client:
        for path in ("/address", "/header", "/whole", "/methods"):
            answers = [client.get(path) for _ in range(3)]
            assert [each.status_code for each in answers] == [200, 200, 429]
            assert ["ratelimit" in each.headers for each in answers] == [True] * 3
        item = [client.get(f"/shop/items/{pk}") for pk in (1, 1, 2)]
        assert [each.status_code for each in item] == [200, 429, 200]
        assert item[2].headers["ratelimit"].endswith('"/shop/items/{pk} (2)";r=1;t=40')
        posts = [client.post(f"/login?status={status}").status_code for status in (200, 200, 401, 401, 401, 200)]
        assert posts == [200, 200, 401, 401, 401, 429]


def test_requests_at_the_same_instant_never_pass_together(interface: Interface, redis_server: RedisServer) -> None:
    headgate = {"engine": redis_server.url, "limits": ["20/hour log"]}
    with serve_project(interface, headgate) as client, ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: client.get("/free").status_code, range(60)))
    assert (statuses.count(200), statuses.count(429)) == (20, 40)


def test_no_burst_passes_at_the_boundary_of_a_window(interface: Interface) -> None:
    clock = ManualClock(59_900_000)
    with serve_project(interface, {"limits": ["3/minute sliding"], "clock": clock}) as client:
        assert statuses(client, *["/free"] * 4) == [200, 200, 200, 429]
        clock.advance(0.2)
        assert statuses(client, "/free") == [429]


def test_an_engine_that_does_not_answer_is_a_503(interface: Interface) -> None:
    with serve_project(interface, {"engine": "redis://127.0.0.1:1", "limits": ["1/s"]}) as client:
        answer = client.get("/free", headers={"Accept": "application/json"})
        assert (answer.status_code, answer.json()["status"]) == (503, 503)


def test_a_limit_without_its_text_is_an_error_of_limit() -> None:
    with pytest.raises(TypeError, match=r"^limit\(\) missing 1 required positional argument: 'limit'"):
        limit(key="address")  # type: ignore[call-arg]


def test_coroutines_stay_coroutines_and_names_stay() -> None:
    assert inspect.iscoroutinefunction(project.by_header)
    assert not inspect.iscoroutinefunction(project.by_address)
    assert project.by_header.__name__ == "by_header"
    assert iscoroutinefunction(project.AsyncWholeView.as_view())


def test_a_view_is_called_with_a_request_of_a_factory() -> None:
    with override_settings(HEADGATE={"clock": ManualClock()}):
        answers = [project.by_address(RequestFactory().get("/any")) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 429]
    assert answers[2].headers["Retry-After"] == "30"


def test_client_address_is_canonical() -> None:
    with override_settings(HEADGATE={"trusted_proxies": ["127.0.0.1"]}):
        request = RequestFactory().get("/", headers={"X-Forwarded-For": "6.6.6.6, ::FFFF:192.0.2.7"})
        assert client_address(request) == "192.0.2.7"


@pytest.mark.parametrize(
    ("route", "template"),
    [
        ("", "/"),
        ("items/<int:pk>/", "/items/{pk}/"),
        ("files/<path:rest>", "/files/{rest...}"),
        (r"^items/(?P<pk>[0-9]+)/$", "/items/{pk}/"),
        (r"^files/(?P<name>.+)/raw\.txt\Z", "/files/{name...}/raw.txt"),
        (r"^a/([^/]+)/(?:b|c)/?$", "/a/{argument}/{argument}/"),
        ("api/^v(?P<version>[12])/users$", "/api/v{version}/users"),
    ],
)
def test_routes_are_templates(route: str, template: str) -> None:
    assert route_template(route) == template
