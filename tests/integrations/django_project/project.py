"""The settings, the views and the URLs of the project."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from typing import Any

import django
from django.conf import settings
from django.http import (
    FileResponse,
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotModified,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)

HEADGATE = "headgate.integrations.django.HeadgateMiddleware"
MIDDLEWARE = [
    HEADGATE,
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "tests.integrations.django_project.project.header_login",
    "django.middleware.http.ConditionalGetMiddleware",
]

if not settings.configured:
    settings.configure(
        SECRET_KEY="for tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.integrations.django_project.project",
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "rest_framework",
            "headgate.integrations.django",
        ],
        MIDDLEWARE=MIDDLEWARE,
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        DATABASES={},
        USE_TZ=True,
        LOGGING_CONFIG=None,
        HEADGATE={},
        REST_FRAMEWORK={
            "DEFAULT_THROTTLE_RATES": {"anon": "2/min", "user": "3/day", "uploads": "1/s burst 2"},
            "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
        },
    )
    django.setup()

from django.contrib.auth.models import AnonymousUser, User  # noqa: E402
from django.urls import include, path, re_path  # noqa: E402
from django.utils.decorators import method_decorator, sync_and_async_middleware  # noqa: E402
from django.views import View  # noqa: E402

from headgate import Limiter  # noqa: E402
from headgate.integrations.django import exempt, limit, user_or_address  # noqa: E402


@sync_and_async_middleware
def header_login(get_response: Any) -> Any:
    """Logs in whom the field X-User names."""

    def log_in(request: HttpRequest) -> None:
        name = request.headers.get("X-User")
        user: Any = User(pk=int(name), username=name) if name else AnonymousUser()

        async def auser() -> Any:
            return user

        request.user, request.auser = user, auser

    if asyncio.iscoroutinefunction(get_response):

        async def call_async(request: HttpRequest) -> Any:
            log_in(request)
            return await get_response(request)

        return call_async

    def call(request: HttpRequest) -> Any:
        log_in(request)
        return get_response(request)

    return call


def free(request: HttpRequest) -> HttpResponse:
    return HttpResponse("free")


@limit("2/minute")
def by_address(request: HttpRequest) -> HttpResponse:
    return HttpResponse("address")


@limit("2/minute", key="user", missing="deny")
def by_user(request: HttpRequest) -> HttpResponse:
    return HttpResponse("user")


@limit("2/minute", key="header.x-api-key", missing="one")
async def by_header(request: HttpRequest) -> HttpResponse:
    return HttpResponse("header")


@limit("2/minute", key=lambda request: request.GET["tenant"])
async def by_function(request: HttpRequest) -> HttpResponse:
    return HttpResponse("function")


@limit("2/minute", key=user_or_address)
async def by_user_or_address(request: HttpRequest) -> HttpResponse:
    return HttpResponse("either")


@limit("1/minute", key="param.pk")
@limit("3/minute", key=None)
def item(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(str(pk))


@limit("3/hour", when={"method": "POST"}, refund="2xx, 3xx")
async def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=int(request.GET.get("status", "200")))


@exempt
def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


@limit("9/minute")
def outcome(request: HttpRequest, kind: str) -> Any:
    """Ends in every way in which a view can end."""
    match kind:
        case "fail":
            raise RuntimeError("nobody handles this")
        case "missing":
            raise Http404
        case "redirect":
            return HttpResponseRedirect("/free")
        case "unchanged":
            return HttpResponseNotModified()
        case "etag":
            return HttpResponse("same", headers={"ETag": '"1"'})
        case _:
            return JsonResponse({"kind": kind})


@limit("1 slot", key=None, name="stream")
def stream(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        yield b"first"
        yield b"last"

    return StreamingHttpResponse(parts())


@limit("1 slot", key=None, name="file")
def file(request: HttpRequest) -> FileResponse:
    return FileResponse(BytesIO(b"a file"), filename="file.txt")


@limit("1 slot", key=None, name="async-stream")
async def async_stream(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.sleep(0)
        yield b"last"

    return StreamingHttpResponse(parts())


@limit("2/minute")
class WholeView(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("whole")


@method_decorator([limit("2/minute"), limit("100/hour", key=None)], name="dispatch")
class AsyncWholeView(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("async whole")


class MethodView(View):
    @method_decorator(limit("1/minute"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("post")

    @limit("2/minute")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("get")


@limit("1/minute", block=False)
def unblocked(request: Any) -> HttpResponse:
    return JsonResponse({"allowed": request.headgate.allowed, "retry_after": request.headgate.retry_after})


checked_limit = limit("1/minute")


def checked(request: HttpRequest) -> HttpResponse:
    record = checked_limit.check(request)
    assert record.decision is not None
    record.decision.or_raise()
    return HttpResponse("checked")


async def checked_async(request: HttpRequest) -> HttpResponse:
    record = await checked_limit.acheck(request)
    return JsonResponse({"allowed": record.allowed, "retry_after": record.retry_after})


def limiter_inside_view(request: HttpRequest) -> HttpResponse:
    Limiter("1/s").take("ann", cost=2).or_raise()
    return HttpResponse("never")


@limit("1/minute", refuse={"status": 403, "body": "Slow down.", "type": "text/plain"})
def custom_body(request: HttpRequest) -> HttpResponse:
    return HttpResponse("passed")


urlpatterns = [
    path("free", free),
    path("address", by_address),
    path("v2/address", by_address),
    path("user", by_user),
    path("header", by_header),
    path("function", by_function),
    path("either", by_user_or_address),
    path("shop/", include([path("items/<int:pk>", item)])),
    path("login", login),
    path("health", health),
    re_path(r"^outcome/(?P<kind>\w+)$", outcome),
    path("stream", stream),
    path("file", file),
    path("async-stream", async_stream),
    path("whole", WholeView.as_view()),
    path("async-whole", AsyncWholeView.as_view()),
    path("methods", MethodView.as_view()),
    path("unblocked", unblocked),
    path("checked", checked),
    path("checked-async", checked_async),
    path("limiter", limiter_inside_view),
    path("own-body", custom_body),
    path("slash/", free),
    path("api/", include("tests.integrations.django_project.api")),
]
